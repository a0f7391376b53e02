// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

namespace distx::detail {

/// The message of an exception that has none.
inline constexpr const char* unknown_exception = "unknown exception (not derived from std::exception)";

}  // namespace distx::detail
