// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/shared_memory/communicator.hpp"
#include "distx/shm/detail/allocation.hpp"

namespace distx {

namespace shm {

struct Kind {
  static constexpr std::string_view name = "shm";
  using Token = SegmentName;
  using Made = Segment::Made;
  using Allocation = shm::Allocation;

  template <Connector C>
  static void admit(C& connector) {
    const auto all = all_gather_values(connector, machine_id());
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      if (all[rank] != all[0])
        throw ConnectError(
            "rank " + std::to_string(rank) +
                " runs on another machine than rank 0: shared memory is for the ranks of one machine; "
                "use MpiCommunicator",
            {.operation = "ShmCommunicator", .backend = name, .rank = connector.rank(), .size = connector.size()});
  }
  static void make(int size, const Timeout&, Made& made, Token& token) {
    made = SegmentArena::make_control(size);
    token = made.name;
  }
  static std::shared_ptr<shared_memory::Arena> find(const Token& token, int rank, int size, const Timeout& deadline) {
    return std::make_shared<SegmentArena>(Segment::find(token), rank, size, deadline);
  }
};

}  // namespace shm

/// Ranks of one machine, processes or threads, that share memory.
///
/// What `allocate` returns is reduced and moved in place by all ranks at once; any other memory goes through slots.
/// Reductions add in rank order: the bits do not depend on where the memory lies. A rank whose process dies ends every
/// wait of the others in a RankFailure.
using ShmCommunicator = shared_memory::Communicator<shm::Kind>;

static_assert(Communicator<ShmCommunicator>);

}  // namespace distx
