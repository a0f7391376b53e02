// expect: invalid stage of ZeRO: must be 0, 1, 2, 3 or Dynamic
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::ThreadCommunicator& comm, const std::vector<distx::Parameter<float>>& parameters) {
#ifndef DISTX_POSITIVE
  distx::DataParallel<distx::ZeRO<4>>* training = nullptr;
  training->step({.learning_rate = 1});
#endif
  distx::DataParallel<distx::ZeRO<3>> other(comm, parameters, distx::SGD{});
}
