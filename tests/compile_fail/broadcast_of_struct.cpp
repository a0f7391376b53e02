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
  distx::broadcast(comm, point, 0);
#else
  distx::broadcast(comm, std::span(&point, 1), 0);
#endif
}
