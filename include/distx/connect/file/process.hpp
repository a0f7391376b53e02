// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <filesystem>
#include <fstream>
#include <istream>
#include <iterator>
#include <ostream>
#include <sstream>
#include <string>

#include "distx/connect/detail/process_state.hpp"

namespace distx::file {

/// A small file of the system's, without the end of its last line; empty where it cannot be read.
[[nodiscard]] inline std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

/// Which process on which machine this is, as written in a file; `-` stands for what the system does not say.
struct Process {
  std::string host = "-";
  std::string boot = "-";   ///< no two starts of a machine have it in common
  std::string space = "-";  ///< processes have numbers in it
  std::int64_t id = 0;
  std::uint64_t began = 0;

  friend std::ostream& operator<<(std::ostream& out, const Process& process) {
    return out << process.host << ' ' << process.boot << ' ' << process.space << ' ' << process.id << ' '
               << process.began;
  }
  friend std::istream& operator>>(std::istream& in, Process& process) {
    return in >> process.host >> process.boot >> process.space >> process.id >> process.began;
  }
  [[nodiscard]] bool shares_machine_with(const Process& other) const noexcept {
    return host == other.host && boot == other.boot;
  }
  [[nodiscard]] std::string to_string() const { return "process " + std::to_string(id) + " on " + host; }
};

namespace detail {

inline void know(std::string& field, const std::string& text) {
  if (!text.empty() && text.find_first_of(" \t\n") == std::string::npos) field = text;
}

/// What a link of the system's names; empty where there is none.
inline std::string link(const char* path) {
  std::error_code none;
  return std::filesystem::read_symlink(path, none).string();
}

}  // namespace detail

[[nodiscard]] inline Process this_process() {
  Process self;
  detail::know(self.host, text_of("/proc/sys/kernel/hostname"));
  detail::know(self.boot, text_of("/proc/sys/kernel/random/boot_id"));
  detail::know(self.space, detail::link("/proc/self/ns/pid"));
  std::istringstream(detail::link("/proc/self")) >> self.id;
  self.began = distx::detail::process_state_from(text_of("/proc/self/stat")).began;
  return self;
}

/// Whether a process is known to have ended; of those on another machine nothing is known.
[[nodiscard]] inline bool has_ended(const Process& process, const Process& self) {
  if (process.id == 0 || !process.shares_machine_with(self) || process.space != self.space) return false;
  const auto now = distx::detail::process_state_from(text_of("/proc/" + std::to_string(process.id) + "/stat"));
  if (now.state == 0) return !text_of("/proc/self/stat").empty();  // else nothing can be read now
  return distx::detail::is_over(now, process.began);
}

}  // namespace distx::file
