// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace distx::checkpoint::detail {

/// Returns the CRC-32 of bytes, as zlib and gzip compute it.
[[nodiscard]] inline std::uint32_t checksum(std::span<const std::byte> bytes) noexcept {
  return static_cast<std::uint32_t>(
      ::crc32_z(::crc32_z(0, nullptr, 0), reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

}  // namespace distx::checkpoint::detail
