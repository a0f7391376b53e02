// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/suite.hpp"
#include "mpi/world.hpp"

namespace {

/// The ranks that mpirun has started.
struct MpiRanks {
  static constexpr bool rank_order = false;
  static constexpr bool one_process = false;
  template <class Body>
  static void run(Body body) {
    distx::MpiCommunicator comm(world(), {.deadline = std::chrono::minutes(4)});
    body(comm);
  }
};

}  // namespace

DISTX_CONFORMANCE(MpiRanks);
