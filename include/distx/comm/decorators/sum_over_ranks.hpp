// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <iomanip>
#include <sstream>

#include "distx/comm/decorators/control.hpp"
#include "distx/observe/ledger.hpp"

namespace distx::inline DISTX_ABI {

/// Returns the sum of all ranks' ledgers on every rank. Collective over `control`.
/// @param control a connector, or a communicator whose traffic `ledger` does not count
template <ControlChannel C>
[[nodiscard]] observe::Ledger sum_over_ranks(const observe::Ledger& ledger, C& control) {
  std::ostringstream mine;
  mine.imbue(std::locale::classic());
  for (const auto& [operation, traffic] : ledger.entries())
    mine << std::quoted(operation) << ' ' << traffic.calls << ' ' << traffic.payload_bytes << ' ' << traffic.sent_bytes
         << ' ' << traffic.received_bytes << '\n';
  observe::Ledger all;
  detail::for_each_text(control, mine.str(), [&](int, const std::string& text) {
    std::istringstream theirs(text);
    theirs.imbue(std::locale::classic());
    std::string operation;
    observe::Traffic traffic;
    while (theirs >> std::quoted(operation) >> traffic.calls >> traffic.payload_bytes >> traffic.sent_bytes >>
           traffic.received_bytes)
      all.add(operation, traffic);
  });
  return all;
}

}  // namespace distx::inline DISTX_ABI
