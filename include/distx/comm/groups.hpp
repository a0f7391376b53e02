// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/detail/mistakes.hpp"
#include "distx/comm/split_rule.hpp"
#include "distx/core/detail/fnv1a.hpp"
#include "distx/core/error.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// Returns a hash of a grouping, for comparison across ranks.
[[nodiscard]] inline std::uint64_t hash_of(const Grouping& grouping) {
  std::vector<std::uint64_t> words{grouping.size()};
  for (const auto& group : grouping) {
    words.push_back(group.size());
    for (const int rank : group) words.push_back(static_cast<std::uint64_t>(rank));
  }
  return fnv1a(words);
}

}  // namespace detail

/// Returns the communicator of this rank's group, or a communicator of this rank alone if it is in no group.
///
/// Collective over `comm`, with the same grouping on every rank. A repeated grouping returns another handle on the same
/// communicator without communication. The root of a collective in a group is a rank of that group.
///
/// @throws InvalidArgument if a rank is out of range or listed twice
/// @throws MismatchError on every rank if the groupings differ
template <Communicator C>
[[nodiscard]] C groups(C& comm, const Grouping& grouping,
                       std::source_location location = std::source_location::current()) {
  if constexpr (requires { comm.group_cache(); })
    if (const auto known = comm.group_cache().find(grouping); known != comm.group_cache().end())
      return std::static_pointer_cast<C>(known->second)->share();
  // The barrier carries the hash of the grouping, so ranks with different groupings fail here.
  detail::execute(comm, calls::Barrier<typename C::space>{location, detail::hash_of(grouping)});
  const ErrorContext context{"groups", comm.backend(), comm.rank(), comm.size(), location};
  // Ranks that are in no group get the colors after those of the groups.
  const int groups = static_cast<int>(grouping.size());
  std::vector<detail::SplitRequest> requests;
  for (int rank = 0; rank < comm.size(); ++rank) requests.push_back({groups + rank, 0, rank});
  for (std::size_t group = 0; group < grouping.size(); ++group) {
    for (std::size_t index = 0; index < grouping[group].size(); ++index) {
      const int rank = grouping[group][index];
      if (rank < 0 || rank >= comm.size())
        throw InvalidArgument(
            "invalid rank " + std::to_string(rank) + " in a group: must be in [0, " + std::to_string(comm.size()) + ")",
            context);
      detail::SplitRequest& request = requests[static_cast<std::size_t>(rank)];
      if (request.color < groups)
        throw InvalidArgument("rank " + std::to_string(rank) + " is in the groups twice", context);
      request.color = static_cast<int>(group);
      request.key = static_cast<int>(index);
    }
  }
  const detail::SplitRule rule([&](int rank) { return requests[static_cast<std::size_t>(rank)]; });
  auto made = std::make_shared<C>(detail::split_by(comm, rule, location));
  if constexpr (requires { comm.group_cache(); }) comm.group_cache().emplace(grouping, made);
  return made->share();
}
/// Diagnoses a temporary communicator with one compile error.
template <Communicator C>
typename detail::OnTemporary<C>::communicator groups(C&&, const Grouping&);

}  // namespace distx::inline DISTX_ABI
