// expect: distx: this argument is not a buffer
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/comm.hpp"
#include "distx/threads.hpp"

void f(distx::ThreadCommunicator& comm) {
  bool more = true;
#ifndef DISTX_POSITIVE
  auto pending = distx::start_broadcast(comm, more, 0);
#else
  auto pending = distx::start_broadcast(comm, std::span(&more, 1), 0);
#endif
  pending.wait();
}
