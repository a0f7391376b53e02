// expect: distx: char is a character and cannot be reduced; use std::int8_t or std::uint8_t
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/comm.hpp"
#include "distx/threads.hpp"

void f(distx::ThreadCommunicator& comm) {
#ifndef DISTX_POSITIVE
  std::vector<char> x(4);
  distx::all_reduce(comm, x, distx::sum);
#else
  std::vector<char> x(4);
  distx::broadcast(comm, x, 0);
#endif
}
