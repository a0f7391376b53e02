// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What is chosen among the processes that mpirun has started here, on one machine.
#include <doctest/doctest.h>

#include <distx/distx.hpp>
#include <distx/shm.hpp>

#include "mpi/world.hpp"

TEST_CASE("processes of one machine share memory") {
  auto comm = distx::best_communicator(world(), std::chrono::minutes(2));
  CHECK(comm.backend() == (world().size() == 1 ? "serial" : "shm"));
  int total = 1;
  distx::all_reduce(comm, total, distx::sum);
  CHECK(total == world().size());
}

TEST_CASE("what MPI makes for the best communicator") {
  const distx::ErrorContext context{.operation = "test", .rank = world().rank(), .size = world().size()};
  CHECK(distx::detail::maker_of("mpi", context).serves_threads());
  auto comm = distx::detail::make_communicator("mpi", world(), std::chrono::minutes(2), context);
  CHECK(comm.backend() == "mpi");
  CHECK(comm.size() == world().size());
}
