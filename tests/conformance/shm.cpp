// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Shared memory among ranks that are threads: what a sanitizer can watch.
#include "conformance/suite.hpp"
#include "distx/distx.hpp"
#include "distx/shm.hpp"

namespace {

struct ShmThreads {
  static constexpr bool rank_order = true;
  static constexpr bool one_process = true;
  template <class Body>
  static void run(Body body) {
    for (const int ranks : {1, 2, 3, 4, 7}) {
      distx::spawn(distx::threads(ranks, std::chrono::minutes(4)), [&](distx::ThreadConnector& connector) {
        distx::ShmCommunicator comm(connector, std::chrono::minutes(4));
        body(comm);
      });
    }
  }
};

}  // namespace

DISTX_CONFORMANCE(ShmThreads);
