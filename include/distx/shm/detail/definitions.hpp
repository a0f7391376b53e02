// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/shared_memory/backend.hpp"
#include "distx/shm/communicator.hpp"
#include "distx/shm/detail/adoption.hpp"

namespace distx::inline DISTX_ABI {

static_assert(Communicator<ShmCommunicator>);

DISTX_INLINE auto ShmCommunicator::connected(detail::ConnectorRef connector,
                                             Timeout deadline) -> std::shared_ptr<State> {
  return detail::shared_memory::connect_region<detail::shm::SegmentRegion>(connector, "shm", deadline);
}

}  // namespace distx::inline DISTX_ABI
