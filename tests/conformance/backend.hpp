// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>

#include "distx/distx.hpp"

namespace conformance {

/// What is to be tested: a program of its own defines `backend()`, and is linked with the suite, which is compiled once
/// for all of them.
struct Backend {
  using Any = distx::AnyCommunicator<>;

  bool rank_order;   ///< reductions add in rank order
  bool one_process;  ///< all ranks are in this process
  /// Calls `body(comm)` on every rank, for every rank count to be tried.
  std::function<void(const std::function<void(Any&)>& body)> run;
  bool tags = true;  ///< messages have tags, and those of different tags pass each other
};

Backend backend();

/// Ranks that are threads of this process, at every rank count that the suite is for; `make(connector)` is a
/// communicator of one of them.
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
