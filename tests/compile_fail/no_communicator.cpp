// expect: distx: the first argument is not a Communicator
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::ThreadConnector& connector, distx::ThreadCommunicator& comm, std::vector<float>& weights) {
#ifndef DISTX_POSITIVE
  distx::all_reduce(connector, weights, distx::sum);
#endif
  distx::all_reduce(comm, weights, distx::sum);
}
