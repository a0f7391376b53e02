// expect: distx: the elements of this range are not contiguous in memory
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <list>

#include "distx/comm.hpp"
#include "distx/threads.hpp"

void f(distx::ThreadCommunicator& comm) {
  const std::list<float> x(4);
#ifndef DISTX_POSITIVE
  distx::send(comm, x, 1);
#else
  distx::send(comm, std::vector<float>(x.begin(), x.end()), 1);
#endif
}
