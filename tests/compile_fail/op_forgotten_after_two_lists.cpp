// expect: distx: the op is missing; pass distx::sum, or another op, after the buffers
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/comm.hpp"
#include "distx/threads.hpp"

void f(distx::ThreadCommunicator& comm, std::vector<std::vector<float>>& list) {
  std::vector<std::vector<float>> results = list;
#ifndef DISTX_POSITIVE
  auto pending = distx::start_all_reduce(comm, list, results);
#else
  auto pending = distx::start_all_reduce(comm, list, results, distx::sum);
#endif
}
