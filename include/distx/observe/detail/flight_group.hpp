// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Whether calls are recorded.
inline constinit std::atomic<bool> flight_enabled{true};

/// A communicator of one rank, as dumps describe it.
struct FlightGroup {
  std::uint64_t id = 0;  ///< hash of the name
  /// Equal on all ranks of the group: "0", or "0/2.1" for color 1 of the second split of group 0.
  std::string name{};
  std::string backend{};
  int rank = 0;
  int size = 0;
  int world_rank = 0;
  int world_size = 0;
  std::vector<int> members{};  ///< the ranks in the world, by rank in the group; empty if unknown

  /// Sets the members of a group that has the ranks of the world.
  void join_world() {
    if (!members.empty() || rank != world_rank || size != world_size) return;
    for (int one = 0; one < size; ++one) members.push_back(one);
  }
};

}  // namespace distx::inline DISTX_ABI::detail
