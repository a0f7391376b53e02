// expect: ignoring return value
// flags: -Werror=unused-result
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::ThreadCommunicator& comm, std::vector<float>& weights) {
#ifndef DISTX_POSITIVE
  distx::start_all_reduce(comm, weights, distx::sum);
#endif
  auto pending = distx::start_all_reduce(comm, weights, distx::sum);
  pending.wait();
}
