// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include "distx/core/unique_handle.hpp"

namespace distx::detail::shm {

struct file_traits {
  using handle_type = int;
  static handle_type null() noexcept { return -1; }
  static void close(handle_type file) noexcept { ::close(file); }
};
using unique_file = unique_handle<file_traits>;

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
using unique_mapping = unique_handle<mapping_traits>;

}  // namespace distx::detail::shm
