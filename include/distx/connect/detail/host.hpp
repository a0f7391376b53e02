// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <string>

namespace distx::detail {

/// Identifies a host: text, then zeros. Trivially copyable, so that ranks can gather it.
using HostId = std::array<char, 64>;

/// Returns the first line of a small file of the system, empty if it cannot be read.
[[nodiscard]] inline std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);  // unlike a stream-buffer iterator, it turns a failing read into a state of the stream
  return line;
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
  std::error_code error;
  const std::string space = std::filesystem::read_symlink("/proc/self/ns/pid", error).string();
  if (!error) text += "/" + space.substr(space.find(':') + 1);
  HostId id{};
  std::copy_n(text.begin(), std::min(text.size(), id.size() - 1), id.begin());
  return id;
}

}  // namespace distx::detail
