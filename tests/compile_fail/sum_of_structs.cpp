// expect: distx: this op cannot reduce these elements
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

struct Point {
  float x, y;
};

void train(distx::ThreadCommunicator& comm, std::vector<Point>& points) {
#ifndef DISTX_POSITIVE
  distx::all_reduce(comm, points, distx::sum);
#endif
  distx::broadcast(comm, points, 0);
}
