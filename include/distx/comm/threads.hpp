// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>

#include "distx/comm/shared_memory/communicator.hpp"
#include "distx/comm/shared_memory/heap_kind.hpp"

namespace distx {

namespace detail {

struct ThreadKind : shared_memory::HeapKind {
  static constexpr std::string_view name = "threads";

  /// The first rank that runs in another process than this one, -1 where none does. Collective.
  template <Connector C>
  static int stranger(C& connector) {
    // The address of one variable, salted by when this process began: equal only within one process.
    struct Process {
      const void* address;
      std::int64_t began;
    };
    static const Process self{&name, std::chrono::steady_clock::now().time_since_epoch().count()};
    const auto all = all_gather_values(connector, self);
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      if (all[rank].address != self.address || all[rank].began != self.began) return static_cast<int>(rank);
    return -1;
  }
  template <Connector C>
  static void admit(C& connector) {
    if (const int other = stranger(connector); other >= 0)
      throw ConnectError(
          "rank " + std::to_string(other) +
              " runs in another process: threads move data within one process; use MpiCommunicator",
          {.operation = "ThreadCommunicator", .backend = name, .rank = connector.rank(), .size = connector.size()});
  }
};

}  // namespace detail

/// Ranks that are threads of one process: every rank reads and writes all ranks' buffers in place.
///
/// Made from any connector whose ranks are threads of this process. Reductions add in rank order.
using ThreadCommunicator = shared_memory::Communicator<detail::ThreadKind>;

}  // namespace distx
