// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <string>

namespace distx {

/// What memory is held for.
enum class MemoryKind : std::uint8_t { weights, gradients, optimizer, in_flight };

/// The bytes that one rank holds of each kind, at one moment and at the most so far: a value.
struct MemoryLedger {
  struct Use {
    std::uint64_t held = 0;
    std::uint64_t peak = 0;
    friend bool operator==(const Use&, const Use&) = default;
  };
  Use weights;
  Use gradients;
  Use optimizer;
  Use in_flight;  ///< what buckets and gathered weights pass through
  Use total;      ///< its peak is that of all kinds together, not the sum of their peaks

  /// As an error has it: `weights 16 bytes, gradients …; together …, at most …`.
  [[nodiscard]] std::string to_string() const {
    const auto one = [](const char* name, const Use& use) {
      return std::string(name) + " " + std::to_string(use.held) + " bytes, ";
    };
    return one("weights", weights) + one("gradients", gradients) + one("optimizer", optimizer) + "in flight " +
           std::to_string(in_flight.held) + " bytes; together " + std::to_string(total.held) + ", at most " +
           std::to_string(total.peak);
  }
  friend bool operator==(const MemoryLedger&, const MemoryLedger&) = default;
};

namespace detail {

/// Counts what is held; memory may be let go on another thread.
class MemoryAccount {
 public:
  void add(MemoryKind kind, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    for (MemoryLedger::Use* use : {&of(kind), &ledger_.total}) {
      use->held += bytes;
      use->peak = std::max(use->peak, use->held);
    }
  }
  void remove(MemoryKind kind, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    of(kind).held -= bytes;
    ledger_.total.held -= bytes;
  }
  [[nodiscard]] MemoryLedger ledger() const {
    const std::lock_guard lock(mutex_);
    return ledger_;
  }

 private:
  MemoryLedger::Use& of(MemoryKind kind) noexcept {
    switch (kind) {
      case MemoryKind::weights:
        return ledger_.weights;
      case MemoryKind::gradients:
        return ledger_.gradients;
      case MemoryKind::optimizer:
        return ledger_.optimizer;
      default:
        return ledger_.in_flight;
    }
  }

  mutable std::mutex mutex_;
  MemoryLedger ledger_;
};

}  // namespace detail

}  // namespace distx
