// expect: distx: this op cannot reduce these elements
// expect: is trivially copyable and has at most 16 bytes
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

struct Large {
  double a, b, c;
  float operator()(float x, float y) const { return x + y; }
};
struct Small {
  double a, b;
  float operator()(float x, float y) const { return x + y; }
};

void train(distx::ThreadCommunicator& comm, std::vector<float>& weights) {
#ifndef DISTX_POSITIVE
  distx::all_reduce(comm, weights, Large{});
#endif
  distx::all_reduce(comm, weights, Small{});
}
