// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/backend.hpp"

conformance::Backend conformance::backend() {
  return {true, true, [](const auto& body) {
            distx::SelfConnector connector;
            body([&](distx::Timeout) { return Backend::Any(distx::SerialCommunicator(connector)); });
          }};
}
