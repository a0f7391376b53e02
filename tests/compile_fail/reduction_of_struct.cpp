// expect: distx: this argument is not a buffer
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/comm.hpp"
#include "distx/threads.hpp"

struct Point {
  float x, y;
};

void f(distx::ThreadCommunicator& comm) {
  Point point{1, 2};
#ifndef DISTX_POSITIVE
  distx::all_reduce(comm, point, distx::sum);
#else
  distx::all_reduce(comm, std::span(&point.x, 1), distx::sum);
#endif
}
