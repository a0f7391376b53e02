// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

// The memory of GPUs: each has a separate range of addresses, and no address is used twice, so that dangling pointers
// are recognized. The page after an allocation is not accessible.
namespace standin {

enum class Kind {
  pageable,  ///< of the host, known to nobody here
  pinned,    ///< of the host, page-locked
  device,
  nothing,  ///< of a GPU, where nothing is
};

/// What memory that is had in stream order comes from.
struct Pool {
  int device = -1;
  std::atomic<std::uint64_t> reached_by{0};  ///< other GPUs, one bit each
  std::atomic<bool> destroyed{false};
  std::atomic<std::uint64_t> threshold{0};  ///< bytes that it keeps while nobody uses them
  std::atomic<std::uint64_t> used{0};
  std::atomic<std::uint64_t> reserved{0};  ///< used now, or used before and not given back yet
};

struct Place {
  Kind kind = Kind::pageable;
  int device = -1;
  void* begin = nullptr;  ///< of the allocation
  std::size_t left = 0;   ///< bytes from here to the allocation's end
  Pool* pool = nullptr;   ///< of what is had in stream order
};

/// The allocation at an address.
[[nodiscard]] Place place(const void* address);

inline constexpr int poison_of_new = 0xCB;
inline constexpr int poison_of_freed = 0xDD;

/// Memory of a GPU, poisoned; null where there is not so much.
[[nodiscard]] void* allocate(int device, std::size_t bytes, std::size_t alignment, Pool* pool);
/// The memory is nobody's any more: places do not find it.
/// @return its bytes
std::size_t forget(void* begin);
/// Forgets an allocation.
void release(void* begin, std::size_t bytes);
/// The bytes of a GPU that are not allocated.
[[nodiscard]] std::size_t free_bytes(int device);
[[nodiscard]] std::size_t total_bytes();

/// Page-locked memory of the host, poisoned.
[[nodiscard]] void* allocate_host(std::size_t bytes);
/// @return whether it was
bool free_host(void* begin);
bool register_host(void* begin, std::size_t bytes);
bool unregister_host(void* begin);

[[nodiscard]] std::size_t live_device_allocations();
[[nodiscard]] std::size_t live_host_allocations();

}  // namespace standin
