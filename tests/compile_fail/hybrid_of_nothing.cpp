// expect: Hybrid sharding requires ZeRO<1>, ZeRO<2> or ZeRO<3>
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::ThreadCommunicator& comm, const std::vector<distx::Parameter<float>>& parameters) {
#ifndef DISTX_POSITIVE
  distx::DataParallel<distx::Hybrid>* training = nullptr;
  training->step({.learning_rate = 1});
#endif
  distx::DataParallel<distx::Hybrid, distx::ZeRO<1>> other(comm, parameters, distx::SGD{}, {.group_ranks = 2});
}
