// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include "distx/core/unique_handle.hpp"

namespace distx::inline DISTX_ABI::detail::posix {

struct descriptor_traits {
  using handle_type = int;
  static handle_type null() noexcept { return -1; }
  static void close(handle_type descriptor) noexcept { ::close(descriptor); }
};

/// Owns an open file, folder, pipe or socket.
using Descriptor = unique_handle<descriptor_traits>;

/// Opens a file or a folder, which other programs do not inherit; null, with `errno`, if the system refuses.
[[nodiscard]] inline Descriptor open_file(const char* path, int flags = O_RDONLY) noexcept {
  return Descriptor::from_native_handle(::open(path, flags | O_CLOEXEC));
}

}  // namespace distx::inline DISTX_ABI::detail::posix
