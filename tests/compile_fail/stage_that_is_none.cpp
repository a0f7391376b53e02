// expect: ZeRO has the stages 0 to 3, and Dynamic for what .stage of the options says
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::ThreadCommunicator& comm, const std::vector<distx::Parameter<float>>& parameters) {
#ifndef DISTX_POSITIVE
  distx::DataParallel<distx::ZeRO<4>>* training = nullptr;
  training->step({});
#endif
  distx::DataParallel<distx::ZeRO<3>> other(comm, parameters, distx::SGD{});
}
