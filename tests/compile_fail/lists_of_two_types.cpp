// expect: distx: send and receive have elements of two types
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/comm.hpp"
#include "distx/threads.hpp"

void f(distx::ThreadCommunicator& comm, std::vector<std::vector<float>>& list) {
#ifndef DISTX_POSITIVE
  std::vector<std::vector<int>> all(list.size());
#else
  std::vector<std::vector<float>> all(list.size());
#endif
  distx::all_gather(comm, list, all);
}
