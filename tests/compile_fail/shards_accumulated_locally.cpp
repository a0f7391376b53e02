// expect: Accumulate<Local> keeps whole gradients, which stages 2 and 3 of ZeRO do not have: name Accumulate<Sharded>
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::ThreadCommunicator& comm, const std::vector<distx::Parameter<float>>& parameters) {
#ifndef DISTX_POSITIVE
  distx::DataParallel<distx::ZeRO<2>, distx::Accumulate<distx::Local>>* training = nullptr;
  training->step({});
#endif
  distx::DataParallel<distx::ZeRO<2>, distx::Accumulate<distx::Sharded>> other(comm, parameters, distx::SGD{});
}
