// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/detail/local_failure_channel.hpp"
#include "distx/connect/self.hpp"
#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

DISTX_INLINE std::shared_ptr<FailureChannel> local_failure_channel() { return std::make_shared<LocalFailureChannel>(); }

}  // namespace distx::inline DISTX_ABI::detail
