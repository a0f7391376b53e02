// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <type_traits>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Returns the 64-bit FNV-1a hash of a range of unsigned or character values; it is not a cryptographic hash.
///
/// Source: Fowler, Noll, Vo; draft-eastlake-fnv. Values wider than a byte are taken whole, one step each.
template <class Range>
constexpr std::uint64_t fnv1a(const Range& values) noexcept {
  std::uint64_t hash = 14695981039346656037ull;
  for (const auto value : values)
    hash = (hash ^ static_cast<std::make_unsigned_t<std::remove_cv_t<decltype(value)>>>(value)) * 1099511628211ull;
  return hash;
}

}  // namespace distx::inline DISTX_ABI::detail
