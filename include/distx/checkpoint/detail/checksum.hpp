// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <libdeflate.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::checkpoint::detail {

/// Returns the CRC-32 of bytes, as zlib and gzip compute it.
/// @param before  the checksum of the bytes in front of these
[[nodiscard]] inline std::uint32_t checksum(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept {
  return bytes.empty() ? before : ::libdeflate_crc32(before, bytes.data(), bytes.size());
}

}  // namespace distx::inline DISTX_ABI::checkpoint::detail
