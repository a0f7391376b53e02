// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <fmt/core.h>
#include <zlib.h>

namespace examples {

/// A checksum (CRC-32) over arrays, in the order in which they are added.
class WeightsHash {
 public:
  template <class T>
  void add(std::span<T> values) {
    const auto bytes = std::as_bytes(values);
    crc_ = crc32_z(crc_, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  }
  [[nodiscard]] std::uint32_t value() const { return static_cast<std::uint32_t>(crc_); }
  [[nodiscard]] std::string text() const { return fmt::format("{:08x}", crc_); }

 private:
  uLong crc_ = crc32_z(0, nullptr, 0);
};

}  // namespace examples
