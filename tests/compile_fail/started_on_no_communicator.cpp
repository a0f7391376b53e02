// expect: distx: the first argument is not a Communicator
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::ThreadConnector& connector, distx::ThreadCommunicator& comm, std::vector<float>& weights) {
#ifndef DISTX_POSITIVE
  (void)distx::start_all_reduce(connector, weights, distx::sum);
#endif
  distx::start_all_reduce(comm, weights, distx::sum).wait();
}
