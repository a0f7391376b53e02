// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <sstream>
#include <string>

#include "distx/core/error.hpp"

namespace distx::file {

/// What nobody else has chosen.
[[nodiscard]] inline std::string random_name() {
  std::random_device random;
  std::ostringstream text;
  text << std::hex;
  for (int word = 0; word < 4; ++word) text << random();
  return text.str();
}

/// A folder in which files appear whole: each is written under another name first.
class Folder {
 public:
  explicit Folder(std::filesystem::path path) : path_(std::move(path)) {}

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] bool has(const std::string& name) const noexcept {
    std::error_code none;
    return std::filesystem::exists(path_ / name, none);
  }
  /// None where it cannot be read.
  [[nodiscard]] std::optional<std::string> read(const std::string& name) const {
    std::ifstream file(path_ / name, std::ios::binary);
    if (!file) return std::nullopt;
    std::string content(std::istreambuf_iterator<char>(file), {});
    if (file.bad()) return std::nullopt;
    return content;
  }

  /// Replaces what has the name.
  /// @throws ConnectError
  void put(const std::string& name, std::string_view content) const {
    const auto part = write(content);
    std::error_code error;
    std::filesystem::rename(part, path_ / name, error);
    if (error) fail(name, error, part);
  }
  /// Leaves what has the name already, and says whether there was nothing.
  /// @throws ConnectError
  bool put_first(const std::string& name, std::string_view content) const {
    const auto part = write(content);
    std::error_code error;
    std::filesystem::create_hard_link(part, path_ / name, error);  // the one call that never replaces anything
    if (has_no_links(error) && !has(name)) {
      std::filesystem::rename(part, path_ / name, error);
      if (!error) return true;
    }
    if (error && !has(name)) fail(name, error, part);
    std::error_code none;
    std::filesystem::remove(part, none);
    return !error;
  }
  void remove(const std::string& name) const noexcept {
    std::error_code none;
    std::filesystem::remove(path_ / name, none);
  }

 private:
  static bool has_no_links(const std::error_code& error) noexcept {
    return error == std::errc::operation_not_supported || error == std::errc::operation_not_permitted ||
           error == std::errc::function_not_supported;
  }
  [[nodiscard]] std::filesystem::path write(std::string_view content) const {
    const auto part = path_ / ("part-" + random_name());
    std::ofstream file(part, std::ios::binary);
    file.write(content.data(), static_cast<std::streamsize>(content.size()));
    file.close();
    if (!file) fail(part.filename(), std::error_code(errno, std::generic_category()), part);
    return part;
  }
  [[noreturn]] void fail(const std::string& name, const std::error_code& error,
                         const std::filesystem::path& part) const {
    std::error_code none;
    std::filesystem::remove(part, none);
    throw ConnectError("cannot write " + (path_ / name).string() + " (" + error.message() +
                           "): the folder in which ranks meet must be writable for all, and stay until they end",
                       {.operation = "connect", .backend = "file"}, error.value());
  }

  std::filesystem::path path_;
};

}  // namespace distx::file
