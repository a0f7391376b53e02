// expect: distx: send and receive have elements of two types
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::ThreadCommunicator& comm, std::vector<float>& floats, std::vector<double>& doubles) {
#ifndef DISTX_POSITIVE
  distx::all_gather(comm, floats, doubles);
#endif
  distx::all_gather(comm, doubles, doubles);
}
