// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/control/group.hpp"
#include "distx/connect/threads.hpp"
#include "distx/core/detail/inline.hpp"

namespace distx {

DISTX_INLINE ThreadConnector ThreadConnector::shrink(Timeout deadline) {
  return ThreadConnector(group_->shrink(deadline));
}

}  // namespace distx
