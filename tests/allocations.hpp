// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "sanitized.hpp"

// Watches the C++ allocations of a program, including distx's; included by one file of it. Libraries in C are not seen.
// Sanitizers replace these functions themselves; nothing is watched with them.
namespace test {

/// The number of allocations of all threads.
inline std::atomic<long> allocations{0};
/// The bytes of this thread's largest allocation since it was set to 0.
inline thread_local std::size_t largest_allocation = 0;

inline void* allocated(void* memory, std::size_t bytes) {
  ++allocations;
  largest_allocation = std::max(largest_allocation, bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace test

#if !DISTX_TESTS_SANITIZED
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return test::allocated(std::malloc(bytes == 0 ? 1 : bytes), bytes);
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto to = static_cast<std::size_t>(alignment);
  return test::allocated(std::aligned_alloc(to, (bytes + to - 1) / to * to), bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
#endif
