// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <atomic>
#include <cstdint>

namespace distx::detail {

/// How often this process has revoked a communicator, except for a mismatch: ranks may not come any more. Connectors
/// compare it with its value in their last call of all ranks, before they wait for the others at their end.
inline std::atomic<std::uint64_t> known_failures{0};

}  // namespace distx::detail
