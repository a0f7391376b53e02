// expect: distx: the communicator is a temporary; give it a name first
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/comm.hpp"
#include "distx/threads.hpp"

void f(distx::ThreadCommunicator& comm) {
  std::vector<float> x(4);
#ifndef DISTX_POSITIVE
  distx::all_reduce(comm.share(), x, distx::sum);
#else
  auto other = comm.share();
  distx::all_reduce(other, x, distx::sum);
#endif
}
