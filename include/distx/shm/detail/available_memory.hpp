// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "distx/posix/small_file.hpp"

namespace distx::inline DISTX_ABI::detail::shm {

/// Calls `f(folder, version)` for each control group that limits the memory of a process, from the innermost one on.
/// @param groups  the contents of the process's `/proc/PID/cgroup`
template <class F>
void each_memory_group(std::string_view groups, F&& f) {
  while (!groups.empty()) {
    const std::string_view line = groups.substr(0, groups.find('\n'));
    groups.remove_prefix(std::min(groups.size(), line.size() + 1));
    const auto colon = line.find(':'), next = line.find(':', colon + 1);
    if (colon == std::string_view::npos || next == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(colon + 1, next - colon - 1);
    const bool first = ("," + std::string(controllers) + ",").find(",memory,") != std::string::npos;
    if (!first && !controllers.empty()) continue;
    const std::string root = first ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup";
    std::string path(line.substr(next + 1));
    if (path.ends_with('/')) path.pop_back();
    for (;; path.erase(std::min(path.rfind('/'), path.size()))) {
      f(root + path, first ? 1 : 2);
      if (path.empty() || path.front() != '/') break;
    }
  }
}

/// Returns the bytes that this process can still allocate: the minimum of the system's and its control groups' limits.
inline std::uint64_t available_bytes() {
  std::array<char, 4096> buffer{};
  const auto number_after = [](std::string_view text, std::string_view key) -> std::uint64_t {
    const auto at = text.find(key);
    if (at == std::string_view::npos) return ~std::uint64_t{0};
    const auto digits = text.find_first_of("0123456789", at + key.size());
    std::uint64_t value = ~std::uint64_t{0};
    if (digits != std::string_view::npos) std::from_chars(text.data() + digits, text.data() + text.size(), value);
    return value;
  };
  std::uint64_t least = number_after(posix::read_start("/proc/meminfo", buffer), "MemAvailable:");
  if (least != ~std::uint64_t{0}) least *= 1024;
  std::array<char, 16384> groups{};
  each_memory_group(posix::read_start("/proc/self/cgroup", groups), [&](const std::string& folder, int version) {
    const auto number_in = [&](const char* name) {  // "max" has no digits
      return number_after(posix::read_start((folder + name).c_str(), buffer), "");
    };
    const std::uint64_t limit = number_in(version == 1 ? "/memory.limit_in_bytes" : "/memory.max");
    const std::uint64_t used = number_in(version == 1 ? "/memory.usage_in_bytes" : "/memory.current");
    if (limit != ~std::uint64_t{0} && used != ~std::uint64_t{0}) least = std::min(least, limit - std::min(limit, used));
  });
  return least;
}

}  // namespace distx::inline DISTX_ABI::detail::shm
