// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <atomic>
#include <cstdint>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The number of communicators that this process has revoked for errors which not all ranks throw themselves: a rank
/// may not join its calls any more. A connector compares it with its value in the last call of all ranks, before it
/// waits for the others at its end.
inline std::atomic<std::uint64_t> known_failures{0};

}  // namespace distx::inline DISTX_ABI::detail
