// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include "comm/every_call.hpp"
#include "shm/forked.hpp"

namespace {

/// Returns the allocations of this process's ranks when calls are repeated, directly and through AnyCommunicator.
long repeated_allocations(auto& connector) {
  distx::ShmCommunicator comm(connector, std::chrono::minutes(1));
  distx::AnyCommunicator<> any(comm.share());
  const long direct = test::allocations_of_repeated_calls(comm);
  return direct + test::allocations_of_repeated_calls(any);
}

}  // namespace

TEST_CASE("in processes, only the first call of each kind allocates, through AnyCommunicator too") {
  for (const int ranks : {1, 2, 3}) {
    const auto of_ranks = test::forked(ranks, [&](test::ForkedConnector& connector, test::Board&) {
      return static_cast<int>(std::min(repeated_allocations(connector), 98l));
    });
    CHECK(of_ranks == std::vector<int>(static_cast<std::size_t>(ranks)));
  }
}

TEST_CASE("on threads over shared memory, only the first call of each kind allocates, through AnyCommunicator too") {
  for (const int ranks : {1, 2, 3}) {
    long counted = -1;
    distx::spawn(distx::threads(ranks, std::chrono::minutes(1)), [&](distx::ThreadConnector& connector) {
      const long mine = repeated_allocations(connector);
      if (connector.rank() == 0) counted = mine;
    });
    CAPTURE(ranks);
    CHECK(counted == 0);
  }
}
