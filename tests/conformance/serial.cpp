// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/suite.hpp"

namespace {

struct Serial {
  static constexpr bool rank_order = true;
  static constexpr bool one_process = true;
  template <class Body>
  static void run(Body body) {
    distx::SelfConnector connector;
    distx::SerialCommunicator comm(connector);
    body(comm);
  }
};

}  // namespace

DISTX_CONFORMANCE(Serial);
