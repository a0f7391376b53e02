// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/backend.hpp"
#include "distx/comm/decorators/faulty.hpp"
#include "distx/comm/decorators/metered.hpp"
#include "distx/comm/decorators/throttled.hpp"
#include "distx/comm/decorators/traced.hpp"

conformance::Backend conformance::backend() {
  return {true, true, [](const auto& body) {
            using distx::Timeout;
            using Threads = distx::ThreadCommunicator;
            thread_ranks([](auto& connector, Timeout deadline) {
              return distx::Metered(Threads(connector, deadline));
            }).run(body);
            thread_ranks([](auto& connector, Timeout deadline) {
              return distx::Traced(Threads(connector, deadline));
            }).run(body);
            // All wrappers combined: a call that one of them drops is missing here.
            thread_ranks([](auto& connector, Timeout deadline) {
              return distx::Metered(distx::Traced(distx::Faulty(
                  distx::Throttled(Threads(connector, deadline), {.latency = std::chrono::nanoseconds(1)}), {})));
            }).run(body);
          }};
}
