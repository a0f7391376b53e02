// expect: distx: this op cannot reduce these elements: average is for floating-point types
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::ThreadCommunicator& comm, std::vector<int>& counts, std::vector<float>& weights) {
#ifndef DISTX_POSITIVE
  distx::all_reduce(comm, counts, distx::average);
#endif
  distx::all_reduce(comm, weights, distx::average);
  distx::all_reduce(comm, counts, distx::sum);
}
