// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <string>

#include "distx/comm/hierarchical/hosts.hpp"
#include "distx/posix/host.hpp"

namespace distx::inline DISTX_ABI::detail {

DISTX_INLINE Hosts::Hosts(const std::vector<int>& first) {
  for (std::size_t rank = 0; rank < first.size(); ++rank) {
    const int number = static_cast<int>(rank);
    if (first[rank] == number) {
      host_.push_back(static_cast<int>(ranks_.size()));
      ranks_.emplace_back();
    } else {
      host_.push_back(host_[static_cast<std::size_t>(first[rank])]);
    }
    auto& there = ranks_[static_cast<std::size_t>(host_.back())];
    consecutive_ = consecutive_ && (there.empty() || there.back() + 1 == number);
    index_.push_back(static_cast<int>(there.size()));
    there.push_back(number);
  }
  const auto [least, most] = std::ranges::minmax_element(ranks_, {}, [](const auto& there) { return there.size(); });
  smallest_ = static_cast<int>(least->size());
  largest_ = static_cast<int>(most->size());
}

DISTX_INLINE Hosts hosts_of(ConnectorRef connector) {
  struct PositionOnHost {
    int rank, size;
    posix::HostId host;
  };
  struct HostRanks {
    int first, arrived, size;
  };
  const auto all = distx::all_gather_values(
      connector, PositionOnHost{connector.local_rank(), connector.local_size(), posix::host_id()});
  const auto fail = [&](std::size_t rank, const std::string& message) {
    throw ConnectError(
        "rank " + std::to_string(rank) + " reports local rank " + std::to_string(all[rank].rank) + " of " +
            std::to_string(all[rank].size) + message,
        {.operation = "connect", .backend = "hierarchical", .rank = connector.rank(), .size = connector.size()});
  };
  std::vector<int> first;
  std::vector<HostRanks> hosts;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const PositionOnHost& local = all[rank];
    if (local.rank == 0) hosts.push_back({static_cast<int>(rank), 0, local.size});
    const auto fits = [&](const HostRanks& m) { return m.arrived == local.rank && m.size == local.size; };
    const auto is_same = [&](const HostRanks& m) {
      return fits(m) && all[static_cast<std::size_t>(m.first)].host == local.host;
    };
    auto host = local.rank == 0 ? hosts.end() - 1 : std::find_if(hosts.begin(), hosts.end(), fits);
    if (host == hosts.end() || local.rank >= local.size) fail(rank, ", which fits no host");
    if (local.rank != 0 && std::count_if(hosts.begin(), hosts.end(), fits) > 1) {
      host = std::find_if(hosts.begin(), hosts.end(), is_same);
      if (std::count_if(hosts.begin(), hosts.end(), is_same) != 1)
        fail(rank, ", which fits more than one host; start the ranks host by host (mpirun --map-by core)");
    }
    ++host->arrived;
    first.push_back(host->first);
  }
  for (const HostRanks& host : hosts)
    if (host.arrived != host.size)
      fail(static_cast<std::size_t>(host.first), ", and the other local ranks are missing");
  return Hosts(first);
}

}  // namespace distx::inline DISTX_ABI::detail
