// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Shared memory among the processes that mpirun has started.
#include "conformance/suite.hpp"
#include "distx/distx.hpp"
#include "distx/shm.hpp"
#include "mpi/world.hpp"

namespace {

struct ShmProcesses {
  static constexpr bool rank_order = true;
  static constexpr bool one_process = false;
  template <class Body>
  static void run(Body body) {
    distx::ShmCommunicator comm(world(), std::chrono::minutes(4));
    body(comm);
  }
};

}  // namespace

DISTX_CONFORMANCE(ShmProcesses);
