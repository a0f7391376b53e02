// expect: distx: the first argument is not a Communicator
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

void train(distx::ThreadConnector& connector, distx::ThreadCommunicator& comm) {
#ifndef DISTX_POSITIVE
  distx::barrier(connector);
#endif
  distx::barrier(comm);
}
