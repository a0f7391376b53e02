// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/distx.hpp"

namespace conformance {

/// Thread ranks, at every rank count that the suite is for.
template <class Communicator>
struct ThreadRanks {
  static constexpr bool rank_order = true;
  static constexpr bool one_process = true;
  template <class Body>
  static void run(Body body) {
    for (const int ranks : {1, 2, 3, 4, 7}) {
      distx::spawn(distx::threads(ranks, std::chrono::minutes(4)), [&](distx::ThreadConnector& connector) {
        Communicator comm(distx::ThreadCommunicator(connector, std::chrono::minutes(4)));
        body(comm);
      });
    }
  }
};

}  // namespace conformance
