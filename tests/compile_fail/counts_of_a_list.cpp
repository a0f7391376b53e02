// expect: distx: a list of buffers takes no counts; omit them, or pass {} before a stream
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/comm.hpp"
#include "distx/threads.hpp"

void f(distx::ThreadCommunicator& comm, std::vector<std::vector<float>>& list) {
  std::vector<std::vector<float>> all = list;
#ifndef DISTX_POSITIVE
  distx::all_gather(comm, list, all, {4, 4});
#else
  distx::all_gather(comm, list, all);
#endif
}
