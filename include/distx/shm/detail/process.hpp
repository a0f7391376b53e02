// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <fcntl.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "distx/connect/detail/host.hpp"
#include "distx/connect/detail/process_state.hpp"
#include "distx/core/detail/fnv1a.hpp"
#include "distx/shm/detail/handles.hpp"

// System information about processes and the host.
namespace distx::detail::shm {

/// Returns the beginning of a small system file, or nothing if it cannot be read.
template <std::size_t Bytes>
std::string_view read_file(const char* path, std::array<char, Bytes>& buffer) noexcept {
  const auto file = unique_file::from_native_handle(::open(path, O_RDONLY | O_CLOEXEC));
  if (!file) return {};
  const auto got = ::read(file.native_handle(), buffer.data(), Bytes);
  return {buffer.data(), got > 0 ? static_cast<std::size_t>(got) : 0};
}

/// Returns a number that identifies the host. @see host_id
inline std::uint64_t host_number() noexcept {
  static const std::uint64_t number = [] {
    const auto id = detail::host_id();
    return detail::fnv1a(std::as_bytes(std::span(id)));
  }();
  return number;
}

inline detail::ProcessState process_state(std::int64_t id) noexcept {
  std::array<char, 32> path{"/proc/"};
  *std::to_chars(path.data() + 6, path.data() + 26, id).ptr = '\0';
  std::strcat(path.data(), "/stat");
  std::array<char, 1024> buffer;
  return detail::process_state_from(read_file(path.data(), buffer));
}

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
  std::uint64_t least = number_after(read_file("/proc/meminfo", buffer), "MemAvailable:");
  if (least != ~std::uint64_t{0}) least *= 1024;
  std::array<char, 16384> groups{};
  each_memory_group(read_file("/proc/self/cgroup", groups), [&](const std::string& folder, int version) {
    const auto number_in = [&](const char* name) {  // "max" has no digits
      return number_after(read_file((folder + name).c_str(), buffer), "");
    };
    const std::uint64_t limit = number_in(version == 1 ? "/memory.limit_in_bytes" : "/memory.max");
    const std::uint64_t used = number_in(version == 1 ? "/memory.usage_in_bytes" : "/memory.current");
    if (limit != ~std::uint64_t{0} && used != ~std::uint64_t{0}) least = std::min(least, limit - std::min(limit, used));
  });
  return least;
}

/// Returns whether the process with this ID and start time has ended; a zombie counts as ended.
inline bool process_ended(std::int64_t id, std::uint64_t began) noexcept {
  const auto now = process_state(id);
  if (now.state == 0) return ::kill(static_cast<pid_t>(id), 0) != 0 && errno == ESRCH;
  return detail::is_over(now, began);
}

}  // namespace distx::detail::shm
