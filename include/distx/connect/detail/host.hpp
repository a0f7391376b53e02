// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <string>

namespace distx::detail {

/// Identifies a host: text, then zeros. Trivially copyable, so that ranks can gather it.
using HostId = std::array<char, 64>;

/// Returns the first line of a small file of the system, empty if it cannot be read.
[[nodiscard]] std::string first_line(const char* path);

/// Returns the host name, empty if the system does not say it.
[[nodiscard]] std::string host_name();

/// Identifies the host of this process: equal in two processes if one kernel runs both (its boot id) and they see each
/// other's process ids (their namespace), which sharing memory needs. Names and networks do not matter.
///
/// Where the kernel has no boot id, the host name stands for it.
[[nodiscard]] HostId host_id();

}  // namespace distx::detail

#ifndef DISTX_COMPILED
#include "distx/connect/detail/host_calls.hpp"
#endif
