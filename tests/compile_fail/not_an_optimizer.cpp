// expect: the third argument is not an optimizer; it must satisfy exactly one of ElementwiseOptimizer, NormOptimizer and MatrixOptimizer
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::ThreadCommunicator& comm, const std::vector<distx::Parameter<float>>& parameters) {
#ifndef DISTX_POSITIVE
  distx::DataParallel<> training(comm, parameters, 3.0);
#endif
  distx::DataParallel<> other(comm, parameters, distx::SGD{});
}
