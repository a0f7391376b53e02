// expect: distx: this argument is not a buffer
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/comm.hpp"
#include "distx/threads.hpp"

struct Point {
  float x, y;
};

void f(distx::ThreadCommunicator& comm) {
  Point point{1, 2};
  const float sent = 1;
#ifndef DISTX_POSITIVE
  distx::all_gather(comm, sent, point);
#else
  distx::all_gather(comm, sent, std::span(&point.x, 1));
#endif
}
