// expect: distx: the elements of this range are not contiguous in memory
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <map>

#include "distx/comm.hpp"
#include "distx/threads.hpp"

void f(distx::ThreadCommunicator& comm) {
  std::map<int, float> x;
#ifndef DISTX_POSITIVE
  distx::broadcast(comm, x, 0);
#else
  std::vector<float> values;
  for (const auto& [key, value] : x) values.push_back(value);
  distx::broadcast(comm, values, 0);
#endif
}
