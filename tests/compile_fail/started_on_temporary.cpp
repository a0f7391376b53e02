// expect: distx: an asynchronous call borrows its buffers until wait(), and this one is a temporary; give it a name that lives until then
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/comm.hpp"
#include "distx/threads.hpp"

void f(distx::ThreadCommunicator& comm) {
  std::vector<float> x(4);
#ifndef DISTX_POSITIVE
  auto pending = distx::start_all_reduce(comm, std::vector<float>(4), distx::sum);
#else
  auto pending = distx::start_all_reduce(comm, std::span(x), distx::sum);
#endif
}
