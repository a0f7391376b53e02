// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

#include "sanitized.hpp"

// Watches the C++ allocations of a program, including distx's; included by one file of it. Libraries in C are not seen.
// Sanitizers replace these functions themselves; nothing is watched with them.
namespace test {

/// The number of allocations of all threads.
inline std::atomic<long> allocations{0};
/// The bytes of this thread's largest allocation since it was set to 0.
inline thread_local std::size_t largest_allocation = 0;

/// The blocks of at least 1 KiB that all threads hold, and their bytes.
struct Held {
  std::atomic<long> blocks{0}, bytes{0};
};
inline Held held;

/// Counts a block, and returns what follows its size. @param before  the bytes in front of the block, for its size
inline void* allocated(void* memory, std::size_t bytes, std::size_t before) {
  ++allocations;
  largest_allocation = std::max(largest_allocation, bytes);
  if (memory == nullptr) throw std::bad_alloc();
  auto* const block = static_cast<std::byte*>(memory) + before;
  std::memcpy(block - sizeof bytes, &bytes, sizeof bytes);
  if (bytes >= 1024) ++held.blocks, held.bytes += static_cast<long>(bytes);
  return block;
}
inline void released(void* block, std::size_t before) {
  if (block == nullptr) return;
  std::size_t bytes = 0;
  std::memcpy(&bytes, static_cast<std::byte*>(block) - sizeof bytes, sizeof bytes);
  if (bytes >= 1024) --held.blocks, held.bytes -= static_cast<long>(bytes);
  std::free(static_cast<std::byte*>(block) - before);
}
inline constexpr std::size_t plain = alignof(std::max_align_t);
inline std::size_t before(std::align_val_t alignment) { return std::max(plain, static_cast<std::size_t>(alignment)); }

}  // namespace test

#if !DISTX_TESTS_SANITIZED
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return test::allocated(std::malloc(bytes + test::plain), bytes, test::plain);
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto to = test::before(alignment);
  return test::allocated(std::aligned_alloc(to, (bytes + 2 * to - 1) / to * to), bytes, to);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { test::released(memory, test::plain); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { test::released(memory, test::plain); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t alignment) noexcept {
  test::released(memory, test::before(alignment));
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t alignment) noexcept {
  test::released(memory, test::before(alignment));
}
#endif
