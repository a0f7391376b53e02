// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <fcntl.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "distx/posix/mapping.hpp"

namespace distx::inline DISTX_ABI::detail::posix {

/// Maps `bytes` zeros of a file without a name, which the system removes with the mapping; null, with `errno`, if the
/// system refuses. The disk's blocks are reserved: a full disk fails here, instead of by SIGBUS at a later write.
/// @pre bytes > 0
[[nodiscard]] inline Mapping map_unnamed_file(const std::string& folder, std::size_t bytes) {
  std::string path = folder + "/distx-XXXXXX";
  const auto file = Descriptor::from_native_handle(::mkostemp(path.data(), O_CLOEXEC));
  if (!file || ::unlink(path.c_str()) != 0) return {};
  int code = 0;
  do code = ::posix_fallocate(file.native_handle(), 0, static_cast<off_t>(bytes));
  while (code == EINTR);
  if (code == 0) return map_file(file, bytes, PROT_READ | PROT_WRITE, MAP_SHARED);
  errno = code;
  return {};
}

}  // namespace distx::inline DISTX_ABI::detail::posix
