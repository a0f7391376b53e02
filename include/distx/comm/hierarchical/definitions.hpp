// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/best_communicator.hpp"
#include "distx/comm/hierarchical.hpp"

namespace distx::inline DISTX_ABI::detail {

DISTX_INLINE AnyCommunicator<> two_levels(AnyCommunicator<> inner, AnyCommunicator<> outer) {
  return AnyCommunicator<>(Hierarchical(std::move(inner), std::move(outer)));
}

}  // namespace distx::inline DISTX_ABI::detail
