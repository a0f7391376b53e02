// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <chrono>
#include <cstdint>

#include "distx/comm/shared_memory/backend.hpp"
#include "distx/comm/shared_memory/heap_region.hpp"

namespace distx {

namespace detail {

/// Returns the first rank that runs in another process, or -1. Collective.
template <Connector C>
int first_foreign_rank(C& connector) {
  // The address of a variable and the start time of the process: equal only within one process.
  struct Process {
    const void* address;
    std::int64_t began;
  };
  static const Process self{&self, std::chrono::steady_clock::now().time_since_epoch().count()};
  const auto all = all_gather_values(connector, self);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].address != self.address || all[rank].began != self.began) return static_cast<int>(rank);
  return -1;
}

}  // namespace detail

/// A communicator of threads of one process. Every rank reads and writes all ranks' buffers in place; reductions
/// combine operands in rank order.
class ThreadCommunicator : public detail::BasicCommunicator<ThreadCommunicator, detail::shared_memory::Backend> {
  using Base = detail::BasicCommunicator<ThreadCommunicator, detail::shared_memory::Backend>;
  friend Base;

 public:
  /// Makes a communicator from a connector whose ranks are threads of this process. Collective over the connector,
  /// which is not needed afterwards.
  /// @throws ConnectError on every rank if a rank runs in another process
  template <class C>
    requires(!std::same_as<std::remove_const_t<C>, ThreadCommunicator>) && Connector<C>
  explicit ThreadCommunicator(C& connector, Timeout deadline = default_deadline)
      : Base(connected(connector, deadline)) {}

 private:
  using Base::Base;

  template <class C>
  static std::shared_ptr<State> connected(C& connector, Timeout deadline) {
    if (const int other = detail::first_foreign_rank(connector); other >= 0)
      throw ConnectError("rank " + std::to_string(other) +
                             " runs in another process, and threads move data within one process; use "
                             "ShmCommunicator or MpiCommunicator",
                         {.operation = "ThreadCommunicator",
                          .backend = "threads",
                          .rank = connector.rank(),
                          .size = connector.size()});
    return detail::shared_memory::connect_region<detail::shared_memory::HeapRegion>(connector, "threads", deadline);
  }
};

}  // namespace distx
