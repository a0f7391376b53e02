// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <sys/mman.h>

#include <cstdint>
#include <span>

#include "distx/memory/buffer.hpp"

namespace distx::inline DISTX_ABI::checkpoint::detail {

/// Memory for a copy of a rank's share of the state; kept between saves, because the first writes to new memory take
/// several times as long as later ones.
class Snapshot {
 public:
  /// Begins a new copy of at most `bytes` bytes, in place of the one before.
  /// @throws MemoryError
  void begin(std::size_t bytes) {
    used_ = 0;
    if (memory_.size() >= bytes) return;
    memory_ = {};
    memory_ = Buffer<std::byte>(bytes, uninitialized);
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    const auto first = (address + page - 1) / page * page, last = (address + bytes) / page * page;
    if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);  // a hint: may fail
  }
  /// Returns the next `bytes` bytes.
  [[nodiscard]] std::span<std::byte> take(std::size_t bytes) noexcept {
    const std::span<std::byte> part(memory_.data() + used_, bytes);
    used_ += bytes;
    return part;
  }

 private:
  static constexpr std::uintptr_t page = std::uintptr_t{2} << 20;

  Buffer<std::byte> memory_;
  std::size_t used_ = 0;
};

}  // namespace distx::inline DISTX_ABI::checkpoint::detail
