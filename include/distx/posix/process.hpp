// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <signal.h>

#include <charconv>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "distx/posix/host.hpp"

namespace distx::inline DISTX_ABI::detail::posix {

/// The state of a process, as /proc reports it.
struct ProcessState {
  char state = 0;             ///< the system's letter, 0 if nothing is known
  std::uint64_t threads = 0;  ///< that have not ended
  std::uint64_t began = 0;    ///< in the system's ticks since it started
};

/// Parses /proc/<id>/stat: the fields after the name, which may itself contain spaces and brackets.
[[nodiscard]] inline ProcessState process_state_from(std::string_view text) noexcept {
  const auto name_end = text.rfind(')');
  if (name_end == std::string_view::npos || name_end + 2 >= text.size()) return {};
  text.remove_prefix(name_end + 2);
  ProcessState known{.state = text.front()};
  constexpr int threads_field = 20, start_field = 22;
  for (int field = 4; field <= start_field; ++field) {  // the state is field 3
    const auto space = text.find(' ');
    if (space == std::string_view::npos) return known;
    text.remove_prefix(space + 1);
    if (field == threads_field) std::from_chars(text.data(), text.data() + text.size(), known.threads);
  }
  std::from_chars(text.data(), text.data() + text.size(), known.began);
  return known;
}

/// Reads /proc/<id>/stat; `state` is 0 if the process has ended or the file cannot be read. Does not allocate, because
/// waits call it.
[[nodiscard]] inline ProcessState process_state(std::int64_t id) noexcept {
  std::array<char, 32> path{"/proc/"};
  *std::to_chars(path.data() + 6, path.data() + 26, id).ptr = '\0';
  std::strcat(path.data(), "/stat");
  std::array<char, 1024> buffer;
  return process_state_from(read_start(path.data(), buffer));
}

/// Returns whether a process that began then has ended: it is a zombie, or another process has its id. A zombie of
/// several threads is a process whose first thread has ended, while others may still be in a system call.
[[nodiscard]] inline bool is_over(const ProcessState& now, std::uint64_t began) noexcept {
  return (now.state == 'Z' && now.threads <= 1) || now.state == 'X' || now.began != began;
}

/// Returns whether the process of this host with this id and start is known to have ended.
[[nodiscard]] inline bool has_ended(std::int64_t id, std::uint64_t began) noexcept {
  const auto now = process_state(id);
  // Too many open files, too, may keep it from being read.
  if (now.state == 0) return ::kill(static_cast<pid_t>(id), 0) != 0 && errno == ESRCH;
  return is_over(now, began);
}

/// Identifies a process of any host.
struct Process {
  std::string host;       ///< see host_id; empty if it is not known
  std::string host_name;  ///< for messages
  std::int64_t id = 0;    ///< 0 if it is not known
  std::uint64_t began = 0;

  [[nodiscard]] bool shares_host_with(const Process& other) const noexcept { return host == other.host; }
  [[nodiscard]] std::string to_string() const {
    return "pid " + std::to_string(id) + " on " + (host_name.empty() ? "an unnamed host" : host_name);
  }
  /// @name The form in which it is written to a file: words, of which `-` stands for what is not known
  /// @{
  [[nodiscard]] std::string text() const {
    const auto word = [](const std::string& field) {
      return field.empty() || field.find_first_of(" \t\n") != std::string::npos ? std::string("-") : field;
    };
    return word(host) + ' ' + word(host_name) + ' ' + std::to_string(id) + ' ' + std::to_string(began);
  }
  template <class In>
  friend auto operator>>(In& in, Process& process) -> decltype(in >> std::declval<std::string&>()) {
    for (auto* field : {&process.host, &process.host_name})
      if (in >> *field && *field == "-") field->clear();
    return in >> process.id >> process.began;
  }
  /// @}
};

[[nodiscard]] inline Process this_process() {
  Process self{host_id().data(), host_name(), 0, 0};
  std::array<char, 32> link;  // the id by which /proc knows this process, and others look for it
  const auto length = ::readlink("/proc/self", link.data(), link.size());
  if (length > 0) std::from_chars(link.data(), link.data() + length, self.id);
  self.began = process_state(self.id).began;
  return self;
}

/// Returns whether a process is known to have ended; nothing is known of processes on other hosts.
[[nodiscard]] inline bool has_ended(const Process& process, const Process& self) noexcept {
  return process.id != 0 && process.shares_host_with(self) && has_ended(process.id, process.began);
}

}  // namespace distx::inline DISTX_ABI::detail::posix
