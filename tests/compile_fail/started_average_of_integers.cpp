// expect: distx: this op cannot reduce these elements
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::AnyCommunicator<>& comm, std::vector<int>& counts) {
#ifndef DISTX_POSITIVE
  distx::start_all_reduce(comm, counts, distx::average).wait();
#endif
  distx::start_all_reduce(comm, counts, distx::max).wait();
}
