// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include "comm/every_call.hpp"
#include "comm/made_up_machines.hpp"

namespace allocations_test {

/// Returns the allocations when calls are repeated, directly and through AnyCommunicator.
/// @param make  makes a rank's communicator from its connector
long repeated_allocations(int ranks, auto&& make) {
  long counted = -1;
  distx::spawn(distx::threads(ranks, std::chrono::minutes(1)), [&](distx::ThreadConnector& connector) {
    auto comm = make(connector);
    distx::AnyCommunicator<> any(comm.share());
    const long direct = test::allocations_of_repeated_calls(comm);
    const long mine = direct + test::allocations_of_repeated_calls(any);
    if (comm.rank() == 0) counted = mine;
  });
  return counted;
}

TEST_CASE("on threads, only the first call of each kind allocates, through AnyCommunicator too") {
  for (const int ranks : {1, 2, 3})
    CHECK(repeated_allocations(ranks, [](auto& connector) { return distx::ThreadCommunicator(connector); }) == 0);
}

TEST_CASE("with two levels, only the first call of each kind allocates, through AnyCommunicator too") {
  for (const std::string_view machines : {"0", "00", "01", "001"}) {
    CAPTURE(machines);
    CHECK(repeated_allocations(static_cast<int>(machines.size()), [&](auto& connector) {
            test::MadeUpMachines made_up(connector, machines);
            return distx::Hierarchical<distx::ThreadCommunicator, distx::ThreadCommunicator>(made_up);
          }) == 0);
  }
}

}  // namespace allocations_test
