// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include <distx/connect/connector.hpp>
#include <distx/core/error.hpp>

namespace examples {

/// What `--json FILE` names; nothing where it is empty.
class JsonFile {
 public:
  explicit JsonFile(std::filesystem::path path) : path_(std::move(path)) {}

  /// To be asked before a long computation; rank 0 looks, all ranks hear. Collective.
  /// @throws distx::Error where `write` would
  template <distx::Connector C>
  void demand_writable(C& connector) const {
    if (path_.empty()) return;
    const bool mine = connector.rank() != 0 || writable();
    if (!distx::broadcast_value(connector, mine, 0)) throw not_writable();
  }

  /// Written beside the file and renamed, so that there is a whole one or none.
  /// @throws distx::Error where it cannot be written
  void write(const nlohmann::json& content) const {
    if (path_.empty()) return;
    std::ofstream file(partial());
    // What is not UTF-8 is replaced.
    file << content.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
    file.close();
    std::error_code error;
    if (file) std::filesystem::rename(partial(), path_, error);
    if (file && !error) return;
    std::filesystem::remove(partial(), error);
    throw not_writable();
  }

 private:
  [[nodiscard]] bool writable() const {
    std::error_code unknown;
    const bool made = static_cast<bool>(std::ofstream(partial()));
    std::filesystem::remove(partial(), unknown);
    return made && !std::filesystem::is_directory(path_, unknown);
  }
  [[nodiscard]] distx::Error not_writable() const {
    return distx::Error(path_.string() + " cannot be written: give --json a file in a directory that you may write to");
  }
  [[nodiscard]] std::filesystem::path partial() const {
    auto beside = path_;
    return beside += ".partial";
  }

  std::filesystem::path path_;
};

}  // namespace examples
