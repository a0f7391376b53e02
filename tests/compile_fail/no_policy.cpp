// expect: one of the types is not a policy: policies are ZeRO<0> to ZeRO<3>
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::ThreadCommunicator& comm, const std::vector<distx::Parameter<float>>& parameters) {
#ifndef DISTX_POSITIVE
  distx::DataParallel<distx::ZeRO<1>, float>* training = nullptr;
  training->step({.learning_rate = 1});
#endif
  distx::DataParallel<distx::ZeRO<1>> other(comm, parameters, distx::SGD{});
}
