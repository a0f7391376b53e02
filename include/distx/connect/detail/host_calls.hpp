// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "distx/connect/detail/host.hpp"
#include "distx/core/detail/inline.hpp"

namespace distx::detail {

DISTX_INLINE std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);  // unlike a stream-buffer iterator, it turns a failing read into a state of the stream
  return line;
}

DISTX_INLINE std::string host_name() { return first_line("/proc/sys/kernel/hostname"); }

DISTX_INLINE HostId host_id() {
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
