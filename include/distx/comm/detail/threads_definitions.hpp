// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <chrono>
#include <cstdint>

#include "distx/comm/serial.hpp"
#include "distx/comm/shared_memory/backend.hpp"
#include "distx/comm/shared_memory/heap_region.hpp"
#include "distx/comm/threads.hpp"
#include "distx/connect/detail/spawn_definitions.hpp"

namespace distx::inline DISTX_ABI {

DISTX_INLINE auto SerialCommunicator::connected(detail::ConnectorRef connector,
                                                Timeout deadline) -> std::shared_ptr<State> {
  if (connector.size() != 1)
    throw ConnectError(
        "a SerialCommunicator has one rank, and there are " + std::to_string(connector.size()) +
            "; use MpiCommunicator or ThreadCommunicator",
        {.operation = "SerialCommunicator", .backend = "serial", .rank = connector.rank(), .size = connector.size()});
  return detail::shared_memory::connect_region<detail::shared_memory::HeapRegion>(connector, "serial", deadline);
}

DISTX_INLINE int detail::first_foreign_rank(ConnectorRef connector) {
  // The address of a variable and the start time of the process: equal only within one process.
  struct ThisProcess {
    const void* address;
    std::int64_t began;
  };
  static const ThisProcess self{&self, std::chrono::steady_clock::now().time_since_epoch().count()};
  const auto all = distx::all_gather_values(connector, self);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].address != self.address || all[rank].began != self.began) return static_cast<int>(rank);
  return -1;
}

DISTX_INLINE auto ThreadCommunicator::connected(detail::ConnectorRef connector,
                                                Timeout deadline) -> std::shared_ptr<State> {
  if (const int other = detail::first_foreign_rank(connector); other >= 0)
    throw ConnectError(
        "rank " + std::to_string(other) +
            " runs in another process, and threads move data within one process; use "
            "ShmCommunicator or MpiCommunicator",
        {.operation = "ThreadCommunicator", .backend = "threads", .rank = connector.rank(), .size = connector.size()});
  return detail::shared_memory::connect_region<detail::shared_memory::HeapRegion>(connector, "threads", deadline);
}

}  // namespace distx::inline DISTX_ABI
