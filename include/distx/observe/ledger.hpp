// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::observe {

/// Counts the calls of one operation and the bytes they moved on one rank.
struct Traffic {
  std::uint64_t calls = 0;
  std::uint64_t payload_bytes = 0;   ///< of the operands
  std::uint64_t sent_bytes = 0;      ///< sent by a bandwidth-optimal algorithm
  std::uint64_t received_bytes = 0;  ///< received by it

  Traffic& operator+=(const Traffic& other) noexcept {
    calls += other.calls;
    payload_bytes += other.payload_bytes;
    sent_bytes += other.sent_bytes;
    received_bytes += other.received_bytes;
    return *this;
  }
  /// Subtracts an earlier state, which leaves the traffic since then.
  /// @pre `earlier` is an earlier state of the same counters
  Traffic& operator-=(const Traffic& earlier) noexcept {
    calls -= earlier.calls;
    payload_bytes -= earlier.payload_bytes;
    sent_bytes -= earlier.sent_bytes;
    received_bytes -= earlier.received_bytes;
    return *this;
  }
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

/// Traffic by operation: a value that can be added, over ranks for instance, and subtracted. See Metered.
class Ledger {
 public:
  using Entries = std::map<std::string, Traffic, std::less<>>;

  /// Adds traffic of an operation. Allocates at the first traffic of an operation only.
  void add(std::string_view operation, const Traffic& traffic);
  /// Returns the traffic of an operation; zeros if it was never called.
  [[nodiscard]] Traffic operator[](std::string_view operation) const;
  /// Returns the sum over all operations.
  [[nodiscard]] Traffic total() const;
  /// Returns the traffic of each operation, ordered by name.
  [[nodiscard]] const Entries& entries() const noexcept { return entries_; }

  Ledger& operator+=(const Ledger& other);
  /// Subtracts an earlier state, which leaves the traffic since then; operations without any are removed.
  Ledger& operator-=(const Ledger& earlier);
  [[nodiscard]] friend Ledger operator+(Ledger a, const Ledger& b) { return a += b; }
  [[nodiscard]] friend Ledger operator-(Ledger a, const Ledger& b) { return a -= b; }
  friend bool operator==(const Ledger&, const Ledger&) = default;

 private:
  Entries entries_;
};

}  // namespace distx::inline DISTX_ABI::observe
