// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <fcntl.h>
#include <signal.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "distx/connect/detail/process_state.hpp"
#include "distx/shm/detail/handles.hpp"

// What the system says about processes and the machine.
namespace distx::shm {

/// The beginning of a small file of the system's; empty where it cannot be read.
template <std::size_t Bytes>
std::string_view read_file(const char* path, std::array<char, Bytes>& buffer) noexcept {
  const auto file = unique_file::from_native_handle(::open(path, O_RDONLY | O_CLOEXEC));
  if (!file) return {};
  const auto got = ::read(file.native_handle(), buffer.data(), Bytes);
  return {buffer.data(), got > 0 ? static_cast<std::size_t>(got) : 0};
}

/// What no two machines, and no two starts of one, have in common.
inline std::array<char, 40> machine_id() noexcept {
  std::array<char, 40> id{};
  read_file("/proc/sys/kernel/random/boot_id", id);
  return id;
}

inline detail::ProcessState process_state(std::int64_t id) noexcept {
  std::array<char, 32> path{"/proc/"};
  *std::to_chars(path.data() + 6, path.data() + 26, id).ptr = '\0';
  std::strcat(path.data(), "/stat");
  std::array<char, 1024> buffer;
  return detail::process_state_from(read_file(path.data(), buffer));
}

/// Whether a process that began then is no more; one that its parent has not yet asked for counts as ended.
inline bool process_ended(std::int64_t id, std::uint64_t began) noexcept {
  const auto now = process_state(id);
  if (now.state == 0) return ::kill(static_cast<pid_t>(id), 0) != 0 && errno == ESRCH;
  return detail::is_over(now, began);
}

}  // namespace distx::shm
