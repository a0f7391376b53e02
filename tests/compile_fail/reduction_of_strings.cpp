// expect: distx: the elements of this range cannot be sent: they must be trivially copyable, unlike std::string or std::vector
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/comm.hpp"
#include "distx/threads.hpp"

void f(distx::ThreadCommunicator& comm) {
#ifndef DISTX_POSITIVE
  std::vector<std::string> x(4);
  distx::all_reduce(comm, x, distx::sum);
#else
  std::vector<std::int8_t> x(4);
  distx::all_reduce(comm, x, distx::sum);
#endif
}
