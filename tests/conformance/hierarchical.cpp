// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Simulated hosts of one, two and three thread ranks; the ranks of the last are not consecutive.
#include "distx/comm/hierarchical.hpp"
#include "comm/made_up_machines.hpp"
#include "conformance/backend.hpp"

conformance::Backend conformance::backend() {
  return {false, true, [](const auto& body) {
            for (const std::string_view machines : {"0", "00", "011", "0011", "0112223", "01101"}) {
              const int ranks = static_cast<int>(machines.size());
              distx::spawn(distx::threads(ranks, std::chrono::minutes(4)), [&](distx::ThreadConnector& connector) {
                test::MadeUpMachines made_up(connector, machines);
                using Threads = distx::ThreadCommunicator;
                body([&](distx::Timeout deadline) {
                  return Backend::Any(distx::Hierarchical<Threads, Threads>(made_up, deadline));
                });
              });
            }
          }};
}
