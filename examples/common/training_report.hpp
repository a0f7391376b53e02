// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <zlib.h>

#include <distx/core/error.hpp>
#include <distx/observe/ledger.hpp>

namespace examples {

/// A checksum (CRC-32) over arrays, in the order in which they are added.
class WeightsHash {
 public:
  void add(std::span<const float> values) {
    const auto bytes = std::as_bytes(values);
    crc_ = crc32_z(crc_, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  }
  [[nodiscard]] std::string text() const { return fmt::format("{:08x}", crc_); }

 private:
  uLong crc_ = crc32_z(0, nullptr, 0);
};

/// What a training leaves behind, averaged over the ranks.
struct TrainingReport {
  int ranks = 1;
  std::size_t parameters = 0;  ///< numbers that are trained
  std::vector<double> step_losses;
  std::vector<double> losses;  ///< of the epochs
  double accuracy = 0;
  std::string weights_hash;
  distx::Ledger traffic;  ///< of all ranks

  /// Whether `write` will be able to; to be asked before a long training.
  [[nodiscard]] static bool writable(const std::filesystem::path& path) {
    std::error_code unknown;
    const bool made = static_cast<bool>(std::ofstream(partial(path)));
    std::filesystem::remove(partial(path), unknown);
    return made && !std::filesystem::is_directory(path, unknown);
  }
  [[nodiscard]] static distx::Error not_writable(const std::filesystem::path& path) {
    return distx::Error(path.string() + " cannot be written: give --json a file in a directory that you may write to");
  }

  /// Written beside the file and renamed, so that there is a whole one or none.
  /// @throws distx::Error where it cannot be written
  void write(const std::filesystem::path& path) const {
    nlohmann::json moved = nlohmann::json::object();
    for (const auto& [operation, each] : traffic.entries())
      moved[operation] = {{"calls", each.calls},
                          {"payload_bytes", each.payload_bytes},
                          {"sent_bytes", each.sent_bytes},
                          {"received_bytes", each.received_bytes}};
    std::ofstream file(partial(path));
    file << nlohmann::json{{"ranks", ranks},
                           {"parameters", parameters},
                           {"step_losses", step_losses},
                           {"losses", losses},
                           {"accuracy", accuracy},
                           {"weights_hash", weights_hash},
                           {"traffic", moved}}
                .dump(2)
         << '\n';
    file.close();
    std::error_code error;
    if (file) std::filesystem::rename(partial(path), path, error);
    if (file && !error) return;
    std::filesystem::remove(partial(path), error);
    throw not_writable(path);
  }

 private:
  static std::filesystem::path partial(std::filesystem::path path) { return path += ".partial"; }
};

}  // namespace examples
