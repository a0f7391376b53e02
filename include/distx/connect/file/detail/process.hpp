// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <signal.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <istream>
#include <ostream>
#include <sstream>
#include <string>

#include "distx/connect/detail/host.hpp"
#include "distx/connect/detail/process_state.hpp"
#include "distx/connect/file/detail/folder.hpp"

namespace distx::detail::file {

/// Identifies a process of a host, in the form in which it is written to a file; `-` stands for what is not known.
struct Process {
  std::string host = "-";       ///< see host_id
  std::string host_name = "-";  ///< for messages
  std::int64_t id = 0;
  std::uint64_t began = 0;

  friend std::ostream& operator<<(std::ostream& out, const Process& process) {
    return out << process.host << ' ' << process.host_name << ' ' << process.id << ' ' << process.began;
  }
  friend std::istream& operator>>(std::istream& in, Process& process) {
    return in >> process.host >> process.host_name >> process.id >> process.began;
  }
  [[nodiscard]] bool shares_host_with(const Process& other) const noexcept { return host == other.host; }
  [[nodiscard]] std::string to_string() const { return "pid " + std::to_string(id) + " on " + host_name; }
};

/// Returns what /proc says of a process; nothing is known (state 0) if it has ended or /proc cannot be read. Does not
/// allocate, because waits call it.
[[nodiscard]] inline ProcessState state_of(const char* id) noexcept {
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/%s/stat", id);
  const auto file = unique_descriptor::from_native_handle(::open(path.data(), O_RDONLY | O_CLOEXEC));
  if (!file) return {};
  std::array<char, 1024> text;
  // A process that is reaped after the file was opened makes the read fail.
  const auto got = ::read(file.native_handle(), text.data(), text.size());
  return process_state_from({text.data(), got > 0 ? static_cast<std::size_t>(got) : 0});
}

[[nodiscard]] inline Process this_process() {
  const auto known = [](std::string& field, const std::string& text) {
    if (!text.empty() && text.find_first_of(" \t\n") == std::string::npos) field = text;
  };
  Process self;
  known(self.host, host_id().data());
  known(self.host_name, host_name());
  std::error_code error;
  std::istringstream(std::filesystem::read_symlink("/proc/self", error).string()) >> self.id;
  self.began = state_of("self").began;
  return self;
}

/// Returns whether a process is known to have ended; nothing is known of processes on other hosts.
[[nodiscard]] inline bool has_ended(const Process& process, const Process& self) noexcept {
  if (process.id == 0 || !process.shares_host_with(self)) return false;
  std::array<char, 24> id{};
  std::to_chars(id.data(), id.data() + id.size() - 1, process.id);
  const auto now = state_of(id.data());
  // Too many open files, too, may keep it from being read.
  if (now.state == 0) return ::kill(static_cast<pid_t>(process.id), 0) != 0 && errno == ESRCH;
  return is_over(now, process.began);
}

}  // namespace distx::detail::file
