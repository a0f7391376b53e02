// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include <distx/connect/connector.hpp>
#include <distx/core/error.hpp>

namespace examples {

/// A file that a flag names, written at the end of a computation. Does nothing if the path is empty.
class OutputFile {
 public:
  OutputFile(std::string flag, std::filesystem::path path) : flag_(std::move(flag)), path_(std::move(path)) {}

  /// Checks before a long computation that the file can be written; removes its temporary file.
  /// @throws distx::Error if it cannot
  void check_writable() const {
    if (path_.empty()) return;
    std::error_code unknown;
    const bool made = static_cast<bool>(std::ofstream(partial()));
    std::filesystem::remove(partial(), unknown);
    if (!made || std::filesystem::is_directory(path_, unknown)) throw not_writable();
  }

  /// Writes to a temporary file that is then renamed, so that the file is complete or absent.
  /// @throws distx::Error if it cannot be written
  void write(const std::string& content) const {
    if (path_.empty()) return;
    std::ofstream file(partial());
    file << content;
    file.close();
    std::error_code error;
    if (file) std::filesystem::rename(partial(), path_, error);
    if (file && !error) return;
    std::filesystem::remove(partial(), error);
    throw not_writable();
  }

 private:
  [[nodiscard]] distx::Error not_writable() const {
    return distx::Error(path_.string() + " cannot be written: give " + flag_ +
                        " a file in a directory you can write to");
  }
  [[nodiscard]] std::filesystem::path partial() const {
    auto temporary = path_;
    return temporary += ".partial";
  }

  std::string flag_;
  std::filesystem::path path_;
};

/// The file that `--json` names; does nothing if the path is empty.
class JsonFile {
 public:
  explicit JsonFile(std::filesystem::path path) : file_("--json", std::move(path)) {}

  /// Checks before a long computation that rank 0 can write the file. Collective.
  /// @throws distx::Error on every rank if it cannot
  template <distx::Connector C>
  void demand_writable(C& connector) const {
    std::string message;
    if (connector.rank() == 0) {
      try {
        file_.check_writable();
      } catch (const distx::Error& error) {
        message = error.message();
      }
    }
    message.resize(distx::broadcast_value(connector, message.size(), 0));
    if (message.empty()) return;
    connector.broadcast(std::as_writable_bytes(std::span(message)), 0);
    throw distx::Error(message);
  }
  /// @throws distx::Error if it cannot be written
  void check_writable() const { file_.check_writable(); }

  /// Writes `content`; bytes that are not UTF-8 are replaced.
  /// @throws distx::Error if it cannot be written
  void write(const nlohmann::json& content) const {
    file_.write(content.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + '\n');
  }

 private:
  OutputFile file_;
};

}  // namespace examples
