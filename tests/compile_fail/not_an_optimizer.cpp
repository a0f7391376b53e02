// expect: the third argument is no optimizer that can be sharded: one of the concepts ElementwiseOptimizer, NormOptimizer and MatrixOptimizer says what it needs
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::ThreadCommunicator& comm, const std::vector<distx::Parameter<float>>& parameters) {
#ifndef DISTX_POSITIVE
  distx::DataParallel<> training(comm, parameters, 3.0);
#endif
  distx::DataParallel<> other(comm, parameters, distx::SGD{});
}
