// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <nlohmann/json.hpp>

#include <distx/observe/ledger.hpp>

namespace examples {

/// The traffic by operation, as the programs report it.
inline nlohmann::json ledger_json(const distx::observe::Ledger& ledger) {
  auto moved = nlohmann::json::object();
  for (const auto& [operation, traffic] : ledger.entries()) {
    moved[operation] = {{"calls", traffic.calls},
                        {"payload_bytes", traffic.payload_bytes},
                        {"sent_bytes", traffic.sent_bytes},
                        {"received_bytes", traffic.received_bytes}};
  }
  return moved;
}

}  // namespace examples
