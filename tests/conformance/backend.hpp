// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "distx/distx.hpp"

namespace conformance {

/// The backend under test. Each test program defines `backend()` and is linked with the suite, which is compiled once
/// for all programs.
struct Backend {
  using Any = distx::AnyCommunicator<>;
  /// Makes a communicator of all ranks under test, with a deadline. Collective; may be called repeatedly.
  using Make = std::function<Any(distx::Timeout deadline)>;

  bool rank_order;   ///< reductions combine operands in rank order
  bool one_process;  ///< all ranks are in this process
  /// Calls `body(make)` on every rank, for every number of ranks under test.
  std::function<void(const std::function<void(const Make& make)>& body)> run;
  bool tags = true;       ///< messages have tags; messages with different tags can overtake each other
  bool compares = true;   ///< calls that differ between ranks throw MismatchError on every rank
  bool threads = true;    ///< several threads of a rank may make calls, each on its own communicator
  bool keeps_nan = true;  ///< max and min give a NaN if any rank has one
  bool forks = true;      ///< a rank's process may fork
};

Backend backend();

/// Returns the numbers of thread ranks under test: the one in DISTX_TEST_RANKS, or all.
inline std::vector<int> thread_rank_counts() {
  const char* const chosen = std::getenv("DISTX_TEST_RANKS");
  return chosen == nullptr ? std::vector{1, 2, 3, 4, 7} : std::vector{std::stoi(chosen)};
}

/// Returns a backend whose ranks are threads of this process, for every number of ranks under test;
/// `make(connector, deadline)` makes one rank's communicator.
template <class Make>
Backend thread_ranks(Make make) {
  return {true, true, [make](const auto& body) {
            for (const int ranks : thread_rank_counts()) {
              distx::spawn(distx::threads(ranks, std::chrono::minutes(4)), [&](distx::ThreadConnector& connector) {
                body([&](distx::Timeout deadline) { return Backend::Any(make(connector, deadline)); });
              });
            }
          }};
}

}  // namespace conformance
