// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <sys/mman.h>

#include <cstddef>

#include "distx/posix/descriptor.hpp"

namespace distx::inline DISTX_ABI::detail::posix {

/// Memory that a process has mapped.
struct Mapped {
  void* address = nullptr;
  std::size_t bytes = 0;
  friend bool operator==(const Mapped&, const Mapped&) noexcept = default;
};

struct mapping_traits {
  using handle_type = Mapped;
  static handle_type null() noexcept { return {}; }
  static void close(handle_type mapped) noexcept { ::munmap(mapped.address, mapped.bytes); }
};

/// Owns mapped memory.
using Mapping = unique_handle<mapping_traits>;

/// Maps the beginning of a file; null, with `errno`, if the system refuses.
/// @param sharing  MAP_SHARED or MAP_PRIVATE
[[nodiscard]] inline Mapping map_file(const Descriptor& file, std::size_t bytes, int protection, int sharing) noexcept {
  void* const address = ::mmap(nullptr, bytes, protection, sharing, file.native_handle(), 0);
  return address == MAP_FAILED ? Mapping() : Mapping::from_native_handle({address, bytes});
}

}  // namespace distx::inline DISTX_ABI::detail::posix
