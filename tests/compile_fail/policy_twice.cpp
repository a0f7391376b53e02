// expect: the policies contain ZeRO twice; keep one stage
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::ThreadCommunicator& comm, const std::vector<distx::Parameter<float>>& parameters) {
#ifndef DISTX_POSITIVE
  distx::DataParallel<distx::ZeRO<1>, distx::ZeRO<2>>* training = nullptr;
  training->step({.learning_rate = 1});
#endif
  distx::DataParallel<distx::ZeRO<1>> other(comm, parameters, distx::SGD{});
}
