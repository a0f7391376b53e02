// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Runs the suite on a communicator with a static type, as in user code.
#include "conformance/suite.hpp"
#include "distx/distx.hpp"

namespace {

struct ThreadRanks {
  static bool rank_order() { return true; }
  static bool one_process() { return true; }
  static bool tags() { return true; }
  static bool compares() { return true; }
  static bool threads() { return true; }
  static bool keeps_nan() { return true; }
  static bool forks() { return true; }
  template <class Body>
  static void run(Body body) {
    for (const int ranks : {1, 2, 3, 4, 7}) {
      distx::spawn(distx::threads(ranks, std::chrono::minutes(4)), [&](distx::ThreadConnector& connector) {
        body([&](distx::Timeout deadline) { return distx::ThreadCommunicator(connector, deadline); });
      });
    }
  }
};

}  // namespace

DISTX_CONFORMANCE(ThreadRanks);
