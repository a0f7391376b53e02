// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Shared memory inside hosts and MPI across, on processes started by mpirun: simulated hosts of one, two and three.
#include "comm/made_up_machines.hpp"
#include "conformance/backend.hpp"
#include "distx/comm/hierarchical.hpp"
#include "distx/shm.hpp"
#include "mpi/world.hpp"

conformance::Backend conformance::backend() {
  Backend backend{false, false, [](const auto& body) {
                    const auto machines =
                        std::string_view("0112223").substr(0, static_cast<std::size_t>(world().size()));
                    test::MadeUpMachines made_up(world(), world().size() == 4 ? "0011" : machines);
                    body([&](distx::Timeout deadline) {
                      auto [inner, outer] = distx::detail::make_levels(
                          made_up, [&](auto& machine) { return distx::ShmCommunicator(machine, deadline); },
                          [&](auto&) { return distx::MpiCommunicator(world(), {.deadline = deadline}); });
                      return Backend::Any(distx::Hierarchical(std::move(inner), std::move(outer)));
                    });
                  }};
  backend.threads = distx::MpiCommunicator::serves_threads();
  return backend;
}
