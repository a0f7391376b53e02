// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>
#include <string>

#include "distx/posix/small_file.hpp"

namespace distx::inline DISTX_ABI::detail::posix {

/// Identifies a host: text, then zeros. Trivially copyable, so that ranks can gather it.
using HostId = std::array<char, 64>;

/// Returns the first line of a small file of the system, empty if it cannot be read.
[[nodiscard]] inline std::string first_line(const char* path) {
  std::array<char, 256> buffer;
  const auto text = read_start(path, buffer);
  return std::string(text.substr(0, text.find('\n')));
}

/// Returns the host name, empty if the system does not say it.
[[nodiscard]] inline std::string host_name() { return first_line("/proc/sys/kernel/hostname"); }

/// Identifies the host of this process: equal in two processes if one kernel runs both (its boot id) and they see each
/// other's process ids (their namespace), which sharing memory needs. Names and networks do not matter.
///
/// Where the kernel has no boot id, the host name stands for it.
[[nodiscard]] inline HostId host_id() {
  std::string text = first_line("/proc/sys/kernel/random/boot_id");
  if (text.empty()) text = host_name();
  std::array<char, 64> link;
  const auto length = ::readlink("/proc/self/ns/pid", link.data(), link.size());  // pid:[4026531836]
  const std::string_view space(link.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  if (!space.empty()) text.append("/").append(space.substr(space.find(':') + 1));
  HostId id{};
  std::copy_n(text.begin(), std::min(text.size(), id.size() - 1), id.begin());
  return id;
}

}  // namespace distx::inline DISTX_ABI::detail::posix
