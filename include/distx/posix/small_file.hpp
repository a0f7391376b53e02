// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <cerrno>
#include <cstddef>
#include <string>
#include <string_view>

#include "distx/posix/descriptor.hpp"

namespace distx::inline DISTX_ABI::detail::posix {

/// Returns the beginning of a file of the system, empty if it cannot be read. Does not allocate.
template <std::size_t Bytes>
[[nodiscard]] std::string_view read_start(const char* path, std::array<char, Bytes>& buffer) noexcept {
  const auto file = open_file(path);
  if (!file) return {};
  // A process that is reaped after its file was opened makes the read fail.
  const auto got = ::read(file.native_handle(), buffer.data(), Bytes);
  return {buffer.data(), got > 0 ? static_cast<std::size_t>(got) : 0};
}

/// Appends the rest of a file to `text`; returns 0, or the error code of the read that failed.
[[nodiscard]] inline int read_rest(const Descriptor& file, std::string& text) {
  char block[4096];
  for (;;) {
    const auto count = ::read(file.native_handle(), block, sizeof block);
    if (count > 0) text.append(block, static_cast<std::size_t>(count));
    if (count == 0) return 0;
    if (count < 0 && errno != EINTR) return errno;
  }
}

/// Writes all bytes to a file; returns 0, or the error code of the write that failed.
[[nodiscard]] inline int write_whole(const Descriptor& file, std::string_view bytes) noexcept {
  while (!bytes.empty()) {
    const auto count = ::write(file.native_handle(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return count < 0 ? errno : ENOSPC;
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return 0;
}

}  // namespace distx::inline DISTX_ABI::detail::posix
