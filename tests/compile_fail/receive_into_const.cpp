// expect: distx: the buffer to receive into is const
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::ThreadCommunicator& comm, const std::vector<float>& fixed, std::vector<float>& weights) {
#ifndef DISTX_POSITIVE
  distx::all_reduce(comm, fixed, distx::sum);
#endif
  distx::all_reduce(comm, fixed, weights, distx::sum);
}
