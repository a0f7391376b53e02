// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The message of an exception that has none.
inline constexpr const char* unknown_exception = "unknown exception (not derived from std::exception)";

}  // namespace distx::inline DISTX_ABI::detail
