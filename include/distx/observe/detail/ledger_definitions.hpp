// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/observe/ledger.hpp"

namespace distx::inline DISTX_ABI::observe {

DISTX_INLINE void Ledger::add(std::string_view operation, const Traffic& traffic) {
  auto entry = entries_.find(operation);
  if (entry == entries_.end()) entry = entries_.emplace(operation, Traffic{}).first;
  entry->second += traffic;
}
DISTX_INLINE Traffic Ledger::operator[](std::string_view operation) const {
  const auto entry = entries_.find(operation);
  return entry == entries_.end() ? Traffic{} : entry->second;
}
DISTX_INLINE Traffic Ledger::total() const {
  Traffic all;
  for (const auto& [operation, traffic] : entries_) all += traffic;
  return all;
}
DISTX_INLINE Ledger& Ledger::operator+=(const Ledger& other) {
  for (const auto& [operation, traffic] : other.entries_) add(operation, traffic);
  return *this;
}
DISTX_INLINE Ledger& Ledger::operator-=(const Ledger& earlier) {
  for (const auto& [operation, traffic] : earlier.entries_) {
    const auto entry = entries_.find(operation);
    if (entry != entries_.end() && (entry->second -= traffic) == Traffic{}) entries_.erase(entry);
  }
  return *this;
}

}  // namespace distx::inline DISTX_ABI::observe
