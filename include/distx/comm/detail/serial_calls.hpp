// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/serial.hpp"
#include "distx/comm/shared_memory/backend.hpp"
#include "distx/comm/shared_memory/heap_region.hpp"
#include "distx/core/detail/inline.hpp"

namespace distx {

DISTX_INLINE auto SerialCommunicator::connected(detail::ConnectorRef connector,
                                                Timeout deadline) -> std::shared_ptr<State> {
  if (connector.size() != 1)
    throw ConnectError(
        "a SerialCommunicator has one rank, and there are " + std::to_string(connector.size()) +
            "; use MpiCommunicator or ThreadCommunicator",
        {.operation = "SerialCommunicator", .backend = "serial", .rank = connector.rank(), .size = connector.size()});
  return detail::shared_memory::connect_region<detail::shared_memory::HeapRegion>(connector, "serial", deadline);
}

}  // namespace distx
