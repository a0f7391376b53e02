// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <vector>

#include "distx/connect/connector.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The host of each rank and its index among the ranks of that host. Hosts are numbered in the order of their first
/// ranks.
class Hosts {
 public:
  /// @param first for each rank, the first rank of its host
  explicit Hosts(const std::vector<int>& first);

  [[nodiscard]] int count() const noexcept { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] int host(int rank) const { return host_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int index(int rank) const { return index_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const std::vector<int>& ranks(int host) const { return ranks_[static_cast<std::size_t>(host)]; }
  /// Returns the smallest and the largest number of ranks per host.
  [[nodiscard]] int smallest() const noexcept { return smallest_; }
  [[nodiscard]] int largest() const noexcept { return largest_; }
  /// Returns whether the ranks of every host are consecutive.
  [[nodiscard]] bool consecutive() const noexcept { return consecutive_; }

 private:
  std::vector<int> host_, index_;
  std::vector<std::vector<int>> ranks_;
  int smallest_ = 0, largest_ = 0;
  bool consecutive_ = true;
};

/// Assigns ranks to hosts by the connector's local ranks: local rank k comes after k-1 on its host. If that fits
/// several hosts, the identity of the host decides. Collective.
/// @throws ConnectError on every rank if the local ranks match no assignment to hosts, or more than one
[[nodiscard]] Hosts hosts_of(ConnectorRef connector);

}  // namespace distx::inline DISTX_ABI::detail
