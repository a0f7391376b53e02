// expect: Precision has no effect on parameters of float or double; use parameters of bfloat16 or float16
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

using Training = distx::DataParallel<distx::Precision<distx::bfloat16>>;

void train(distx::ThreadCommunicator& comm, const std::vector<distx::Parameter<float>>& floats,
           const std::vector<distx::Parameter<distx::bfloat16>>& parameters) {
#ifndef DISTX_POSITIVE
  Training training(comm, floats, distx::SGD{});
#endif
  Training other(comm, parameters, distx::SGD{});
}
