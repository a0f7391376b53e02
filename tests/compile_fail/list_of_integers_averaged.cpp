// expect: distx: this op cannot reduce these elements
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::ThreadCommunicator& comm, std::vector<distx::Span<int>>& list) {
#ifndef DISTX_POSITIVE
  distx::all_reduce(comm, list, distx::average);
#endif
  distx::all_reduce(comm, list, distx::sum);
}
