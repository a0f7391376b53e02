// expect: distx: micro_batch needs the policy Accumulate<Local>, Accumulate<Sharded> or Reproducible<V>
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::ThreadCommunicator& comm, const std::vector<distx::Parameter<float>>& parameters) {
#ifdef DISTX_POSITIVE
  distx::DataParallel<distx::ZeRO<1>, distx::Accumulate<distx::Local>> training(comm, parameters, distx::SGD{});
#else
  distx::DataParallel<distx::ZeRO<1>> training(comm, parameters, distx::SGD{});
#endif
  const auto batch = training.micro_batch({.index = 0, .count = 1});
}
