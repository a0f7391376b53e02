// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>

#include "distx/distx.hpp"

namespace conformance {

/// The backend under test. Each test program defines `backend()` and is linked with the suite, which is compiled once
/// for all programs.
struct Backend {
  using Any = distx::AnyCommunicator<>;

  bool rank_order;   ///< reductions combine operands in rank order
  bool one_process;  ///< all ranks are in this process
  /// Calls `body(comm)` on every rank, for every number of ranks under test.
  std::function<void(const std::function<void(Any&)>& body)> run;
  bool tags = true;      ///< messages have tags; messages with different tags can overtake each other
  bool compares = true;  ///< calls that differ between ranks throw MismatchError on every rank
};

Backend backend();

/// Returns a backend whose ranks are threads of this process, for every number of ranks in the suite; `make(connector)`
/// makes one rank's communicator.
template <class Make>
Backend thread_ranks(Make make) {
  return {true, true, [make](const auto& body) {
            for (const int ranks : {1, 2, 3, 4, 7}) {
              distx::spawn(distx::threads(ranks, std::chrono::minutes(4)), [&](distx::ThreadConnector& connector) {
                Backend::Any comm(make(connector));
                body(comm);
              });
            }
          }};
}

}  // namespace conformance
