// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/core/span.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Work that was recorded while a stream of the memory space was captured, to be enqueued as a whole, again and again.
/// Memory spaces whose streams can be captured specialize it.
template <MemorySpace Space>
class CapturedWork {
 public:
  static constexpr bool available = false;
  /// Whether the stream is being captured.
  [[nodiscard]] static bool capturing(typename Space::stream) noexcept { return false; }
};

}  // namespace distx::inline DISTX_ABI::detail
