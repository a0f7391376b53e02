// expect: distx: a pointer does not say how many elements it points to; pass std::span(pointer, count)
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/comm.hpp"
#include "distx/threads.hpp"

void f(distx::ThreadCommunicator& comm) {
  std::vector<float> x(4);
#ifndef DISTX_POSITIVE
  distx::all_reduce(comm, x.data(), distx::sum);
#else
  distx::all_reduce(comm, std::span(x.data(), 4), distx::sum);
#endif
}
