// expect: distx: the op is missing; pass distx::sum, or another op, after the buffers
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/comm.hpp"
#include "distx/threads.hpp"

void f(distx::ThreadCommunicator& comm) {
  std::vector<float> x(4);
  std::vector<float> y(4);
#ifndef DISTX_POSITIVE
  distx::all_reduce(comm, x, y);
#else
  distx::all_reduce(comm, x, y, distx::sum);
#endif
}
