// expect: distx: counts are one integer per rank; pass a std::vector<std::size_t> or {3, 4}
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/comm.hpp"
#include "distx/threads.hpp"

void f(distx::ThreadCommunicator& comm) {
  std::vector<float> x(4);
  std::vector<float> y(8);
#ifndef DISTX_POSITIVE
  distx::all_gather(comm, x, y, std::vector<float>{4, 4});
#else
  distx::all_gather(comm, x, y, std::vector<int>{4, 4});
#endif
}
