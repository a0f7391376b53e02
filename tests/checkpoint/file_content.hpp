// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace test {

inline std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
/// Writes a file, in place if it exists: file systems write a truncated file to the disk when it is closed.
inline void set_content(const std::filesystem::path& path, const std::string& content) {
  if (!std::filesystem::exists(path)) std::ofstream(path).close();
  std::fstream(path, std::ios::binary | std::ios::in | std::ios::out) << content;
  std::filesystem::resize_file(path, content.size());
}

}  // namespace test
