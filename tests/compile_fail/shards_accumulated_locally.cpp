// expect: Accumulate<Local> needs whole gradients, which ZeRO<2> and ZeRO<3> shard; use Accumulate<Sharded>
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::ThreadCommunicator& comm, const std::vector<distx::Parameter<float>>& parameters) {
#ifndef DISTX_POSITIVE
  distx::DataParallel<distx::ZeRO<2>, distx::Accumulate<distx::Local>>* training = nullptr;
  training->step({.learning_rate = 1});
#endif
  distx::DataParallel<distx::ZeRO<2>, distx::Accumulate<distx::Sharded>> other(comm, parameters, distx::SGD{});
}
