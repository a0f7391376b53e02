// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>

#include "distx/connect/connector.hpp"

namespace distx::detail {

/// Which machine each rank is on, and which place it has among the ranks there; machines by their first rank.
class Machines {
 public:
  /// @param first for each rank the first rank of its machine
  explicit Machines(const std::vector<int>& first) {
    for (std::size_t rank = 0; rank < first.size(); ++rank) {
      const int number = static_cast<int>(rank);
      if (first[rank] == number) {
        machine_.push_back(static_cast<int>(ranks_.size()));
        ranks_.emplace_back();
      } else {
        machine_.push_back(machine_[static_cast<std::size_t>(first[rank])]);
      }
      auto& there = ranks_[static_cast<std::size_t>(machine_.back())];
      consecutive_ = consecutive_ && (there.empty() || there.back() + 1 == number);
      place_.push_back(static_cast<int>(there.size()));
      there.push_back(number);
    }
    smallest_ = largest_ = static_cast<int>(ranks_.front().size());
    for (const auto& there : ranks_) {
      smallest_ = std::min(smallest_, static_cast<int>(there.size()));
      largest_ = std::max(largest_, static_cast<int>(there.size()));
    }
  }

  [[nodiscard]] int count() const noexcept { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] int machine(int rank) const { return machine_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int place(int rank) const { return place_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const std::vector<int>& ranks(int machine) const { return ranks_[static_cast<std::size_t>(machine)]; }
  /// Ranks on the machine that has fewest, and on the one that has most.
  [[nodiscard]] int smallest() const noexcept { return smallest_; }
  [[nodiscard]] int largest() const noexcept { return largest_; }
  /// Whether the ranks of every machine follow one another.
  [[nodiscard]] bool consecutive() const noexcept { return consecutive_; }

 private:
  std::vector<int> machine_, place_;
  std::vector<std::vector<int>> ranks_;
  int smallest_ = 0, largest_ = 0;
  bool consecutive_ = true;
};

/// The same as the connector's local ranks have it: local rank k follows k-1 on its machine. Collective.
/// @throws ConnectError on every rank where that fits no machines, or several
template <Connector C>
[[nodiscard]] Machines machines_of(C& connector) {
  struct Local {
    int rank, size;
  };
  struct Machine {
    int first, come, size;
  };
  const auto all = all_gather_values(connector, Local{connector.local_rank(), connector.local_size()});
  const auto fail = [&](std::size_t rank, const std::string& words) {
    throw ConnectError(
        "rank " + std::to_string(rank) + " says that it is local rank " + std::to_string(all[rank].rank) + " of " +
            std::to_string(all[rank].size) + words,
        {.operation = "connect", .backend = "hierarchical", .rank = connector.rank(), .size = connector.size()});
  };
  std::vector<int> first;
  std::vector<Machine> machines;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Local& local = all[rank];
    if (local.rank == 0) machines.push_back({static_cast<int>(rank), 0, local.size});
    const auto fits = [&](const Machine& m) { return m.come == local.rank && m.size == local.size; };
    const auto machine = local.rank == 0 ? machines.end() - 1 : std::find_if(machines.begin(), machines.end(), fits);
    if (machine == machines.end() || local.rank >= local.size) fail(rank, ", which fits no machine");
    if (local.rank != 0 && std::count_if(machines.begin(), machines.end(), fits) > 1)
      fail(rank, ", of more than one machine: start the ranks machine by machine (mpirun --map-by core)");
    ++machine->come;
    first.push_back(machine->first);
  }
  for (const Machine& machine : machines)
    if (machine.come != machine.size) fail(static_cast<std::size_t>(machine.first), ", and the others are missing");
  return Machines(first);
}

}  // namespace distx::detail
