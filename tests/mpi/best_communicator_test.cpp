// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tests which communicator is chosen for processes started by mpirun on one host.
#include <doctest/doctest.h>

#include <distx/distx.hpp>
#include <distx/shm.hpp>

#include "mpi/world.hpp"

TEST_CASE("processes on one host get shared memory") {
  auto comm = distx::best_communicator(world(), std::chrono::minutes(2));
  CHECK(comm.backend() == (world().size() == 1 ? "serial" : "shm"));
  int total = 1;
  distx::all_reduce(comm, total, distx::sum);
  CHECK(total == world().size());
}

TEST_CASE("best_communicator makes an MPI communicator") {
  using Maker = distx::detail::maker_t<distx::detail::MpiTag, distx::MpiConnector>;
  CHECK(Maker::serves_threads());
  auto comm = Maker::make(world(), std::chrono::minutes(2));
  CHECK(comm.backend() == "mpi");
  CHECK(comm.size() == world().size());
}
