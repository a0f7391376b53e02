// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <chrono>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::checkpoint::detail {

/// Unpublished files and folders that have not changed for this time are considered to be left by ended processes.
inline constexpr std::chrono::seconds default_stale_after = std::chrono::hours(1);

}  // namespace distx::inline DISTX_ABI::checkpoint::detail
