// expect: distx: the buffer to receive into is const
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::ThreadCommunicator& comm, const std::vector<float>& fixed, std::vector<float>& weights) {
#ifndef DISTX_POSITIVE
  distx::broadcast(comm, fixed, 0);
#endif
  distx::broadcast(comm, weights, 0);
}
