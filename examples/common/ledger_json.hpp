// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <nlohmann/json.hpp>

#include <distx/observe/ledger.hpp>
#include <distx/observe/memory_ledger.hpp>

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

/// The memory by purpose.
inline nlohmann::json ledger_json(const distx::observe::MemoryLedger& ledger) {
  const auto one = [](const distx::observe::MemoryLedger::Use& use) {
    return nlohmann::json{{"held", use.held}, {"peak", use.peak}};
  };
  return {{"weights", one(ledger.weights)},
          {"gradients", one(ledger.gradients)},
          {"optimizer", one(ledger.optimizer)},
          {"in_flight", one(ledger.in_flight)},
          {"activations", one(ledger.activations)},
          {"offloaded", one(ledger.offloaded)},
          {"total", one(ledger.total)}};
}

}  // namespace examples
