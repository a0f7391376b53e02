// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <charconv>
#include <cstdint>
#include <string_view>

namespace distx::detail {

/// The state of a process, as /proc reports it.
struct ProcessState {
  char state = 0;             ///< the system's letter, 0 if nothing is known
  std::uint64_t threads = 0;  ///< that have not ended
  std::uint64_t began = 0;    ///< in the system's ticks since it started
};

/// Parses /proc/<id>/stat: the fields after the name, which may itself contain spaces and brackets.
inline ProcessState process_state_from(std::string_view text) noexcept {
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

/// Returns whether a process that began then has ended: it is a zombie, or another process has its id. A zombie of
/// several threads is a process whose first thread has ended, while others may still be in a system call.
[[nodiscard]] inline bool is_over(const ProcessState& now, std::uint64_t began) noexcept {
  return (now.state == 'Z' && now.threads <= 1) || now.state == 'X' || now.began != began;
}

}  // namespace distx::detail
