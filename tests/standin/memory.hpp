// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>

// The memory that a program may have: each GPU's lies in a range of addresses of its own, and no address is given out
// twice, so that what points to memory that is no more is known as such. The page after an allocation is nobody's.
namespace standin {

enum class Kind {
  pageable,  ///< of the host, known to nobody here
  pinned,    ///< of the host, page-locked
  device,
  nothing,  ///< of a GPU, where nothing is
};

struct Place {
  Kind kind = Kind::pageable;
  int device = -1;
  void* begin = nullptr;      ///< of the allocation
  std::size_t left = 0;       ///< bytes from here to the allocation's end
  bool in_order = false;      ///< from cudaMallocAsync
};

/// What lies at an address.
[[nodiscard]] Place place(const void* address);

inline constexpr int poison_of_new = 0xCB;
inline constexpr int poison_of_freed = 0xDD;

/// Memory of a GPU, poisoned; null where there is not so much.
[[nodiscard]] void* allocate(int device, std::size_t bytes, std::size_t alignment, bool in_order);
/// The memory is nobody's any more: places do not find it.
/// @return its bytes
std::size_t forget(void* begin);
/// What was forgotten is gone.
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
