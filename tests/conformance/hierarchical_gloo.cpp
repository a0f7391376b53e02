// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Shared memory inside hosts and Gloo across, on processes that tools/ranks connects through a folder: simulated hosts.
#include "comm/made_up_machines.hpp"
#include "conformance/backend.hpp"
#include "distx/comm/hierarchical.hpp"
#include "distx/file.hpp"
#include "distx/gloo.hpp"
#include "distx/shm.hpp"

conformance::Backend conformance::backend() {
  return {false, false, [](const auto& body) {
            static distx::AnyConnector connector = distx::connect();
            const auto machines = std::string_view("0112").substr(0, static_cast<std::size_t>(connector.size()));
            test::MadeUpMachines made_up(connector, connector.size() == 4 ? "0011" : machines);
            using Levels = distx::Hierarchical<distx::ShmCommunicator, distx::GlooCommunicator>;
            body([&](distx::Timeout deadline) { return Backend::Any(Levels(made_up, deadline)); });
          }};
}
