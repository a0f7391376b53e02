// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace test {

/// Returns the names of a folder's entries.
inline std::set<std::string> entries(const char* folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

/// Returns the entries of /dev/shm, except the files of MPI programs that may be running at the same time.
inline std::set<std::string> shared_names() {
  auto names = entries("/dev/shm");
  std::erase_if(names, [](const std::string& name) { return name.starts_with("vader_segment."); });
  return names;
}

inline std::size_t open_files() { return entries("/proc/self/fd").size(); }

/// Returns a line of /proc/self/status in KiB, such as `VmRSS` and `RssShmem`.
inline std::size_t memory_kib(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind(name + ":", 0) == 0) return std::stoul(line.substr(name.size() + 1));
  return 0;
}

inline std::size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t lines = 0;
  for (std::string line; std::getline(maps, line);) ++lines;
  return lines;
}

/// Returns the permissions of an address in /proc/self/maps, such as "r--s".
inline std::string permissions(const void* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::string permitted;
    fields >> std::hex >> begin >> dash >> end >> permitted;
    if (const auto at = reinterpret_cast<std::uintptr_t>(address); begin <= at && at < end) return permitted;
  }
  return "unmapped";
}

/// Returns whether this process shares memory and none of it has a name in /dev/shm that could be left there.
inline bool nameless() {
  std::ifstream maps("/proc/self/maps");
  bool shares = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/dev/shm/") != std::string::npos) return false;
    shares = shares || line.find("/memfd:distx (deleted)") != std::string::npos;
  }
  return shares;
}

}  // namespace test
