// expect: distx: std::vector<bool> does not store addressable elements; use std::vector<std::uint8_t>
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/comm.hpp"
#include "distx/threads.hpp"

void f(distx::ThreadCommunicator& comm) {
#ifndef DISTX_POSITIVE
  std::vector<bool> x(4);
  distx::all_reduce(comm, x, distx::max);
#else
  std::vector<std::uint8_t> x(4);
  distx::all_reduce(comm, x, distx::max);
#endif
}
