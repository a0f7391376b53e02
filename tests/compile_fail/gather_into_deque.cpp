// expect: distx: the elements of this range are not contiguous in memory
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <deque>

#include "distx/comm.hpp"
#include "distx/threads.hpp"

void f(distx::ThreadCommunicator& comm) {
  std::deque<float> x(4);
  const float sent = 1;
#ifndef DISTX_POSITIVE
  distx::gather(comm, sent, x, 0);
#else
  std::vector<float> values(4);
  distx::gather(comm, sent, values, 0);
  x.assign(values.begin(), values.end());
#endif
}
