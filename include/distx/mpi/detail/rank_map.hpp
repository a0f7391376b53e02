// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <mpi.h>

#include <memory>
#include <vector>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// What carries the messages of a group of ranks: an MPI communicator, and the group's ranks in it.
struct RankMap {
  MPI_Comm comm = MPI_COMM_NULL;
  std::shared_ptr<const std::vector<int>> ranks{};  ///< by rank in the group; null if all, in their order

  /// Returns the rank in the communicator.
  [[nodiscard]] int operator[](int rank) const noexcept {
    return ranks == nullptr ? rank : (*ranks)[static_cast<std::size_t>(rank)];
  }
};

/// Some ranks of a session, which exchange messages without a separate MPI communicator: their tags contain the
/// number of their channel. A rank uses each number once, so messages of different channels never match.
struct RankSubset {
  std::shared_ptr<const std::vector<int>> ranks;  ///< in the session's communicators
  int rank = 0;                                   ///< this rank's index among them
  int channel = 0;

  /// The tags of a channel: one half for collectives, the other for user messages.
  static constexpr int tags = 1 << 16;
  static constexpr int user_tags = tags / 2;

  [[nodiscard]] int size() const noexcept { return static_cast<int>(ranks->size()); }
  [[nodiscard]] int first_tag() const noexcept { return channel * tags; }
};

}  // namespace distx::inline DISTX_ABI::detail::mpi
