// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/core/span.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The device of a memory space that was current on the thread that constructed this; nothing in host memory.
template <MemorySpace Space>
struct CurrentDevice {
  static constexpr int number = 0;
  /// Makes that device current on this thread until the scope ends.
  struct Guard {
    explicit Guard(const CurrentDevice&) noexcept {}
    ~Guard() {}  // NOLINT: a variable of this type is not unused
  };
};

}  // namespace distx::inline DISTX_ABI::detail
