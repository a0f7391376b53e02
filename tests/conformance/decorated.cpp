// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/backend.hpp"
#include "distx/comm/decorators/faulty.hpp"
#include "distx/comm/decorators/metered.hpp"
#include "distx/comm/decorators/paced.hpp"
#include "distx/comm/decorators/traced.hpp"

namespace {

distx::ThreadCommunicator threads(distx::ThreadConnector& connector) {
  return distx::ThreadCommunicator(connector, std::chrono::minutes(4));
}

}  // namespace

conformance::Backend conformance::backend() {
  return {true, true, [](const auto& body) {
            thread_ranks([](auto& connector) { return distx::Metered(threads(connector)); }).run(body);
            thread_ranks([](auto& connector) { return distx::Traced(threads(connector)); }).run(body);
            // All wrappers combined: a call that one of them drops is missing here.
            thread_ranks([](auto& connector) {
              return distx::Metered(distx::Traced(
                  distx::Faulty(distx::Paced(threads(connector), {.latency = std::chrono::nanoseconds(1)}), {})));
            }).run(body);
          }};
}
