// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/communicator.hpp"
#include "distx/core/error.hpp"

namespace distx {

/// The communicator of this rank's group; a rank that no group names is alone. Collective, with the same grouping
/// everywhere. A grouping asked for again gives a handle on the same communicator, without communication. A root inside
/// a group is a rank of that group.
/// @throws MismatchError for a rank that is named twice or is none
template <Communicator C>
[[nodiscard]] C groups(C& comm, const Grouping& grouping,
                       std::source_location location = std::source_location::current()) {
  GroupCache& cache = comm.group_cache();
  if (const auto known = cache.find(grouping); known != cache.end())
    return std::static_pointer_cast<C>(known->second)->share();
  const ErrorContext context{
      .operation = "groups", .backend = comm.backend(), .rank = comm.rank(), .size = comm.size(), .location = location};
  // A rank named nowhere gets a colour of its own, behind those of the groups.
  std::vector<int> color(static_cast<std::size_t>(comm.size()), -1);
  int key = 0;
  for (std::size_t group = 0; group < grouping.size(); ++group) {
    for (std::size_t place = 0; place < grouping[group].size(); ++place) {
      const int rank = grouping[group][place];
      if (rank < 0 || rank >= comm.size())
        throw MismatchError(
            "a group names rank " + std::to_string(rank) + ": ranks are 0 to " + std::to_string(comm.size() - 1),
            context);
      if (color[static_cast<std::size_t>(rank)] >= 0)
        throw MismatchError("rank " + std::to_string(rank) + " is named twice", context);
      color[static_cast<std::size_t>(rank)] = static_cast<int>(group);
      if (rank == comm.rank()) key = static_cast<int>(place);
    }
  }
  const int mine = color[static_cast<std::size_t>(comm.rank())];
  auto made = std::make_shared<C>(comm.split(mine >= 0 ? mine : static_cast<int>(grouping.size()) + comm.rank(), key));
  cache.emplace(grouping, made);
  return made->share();
}

}  // namespace distx
