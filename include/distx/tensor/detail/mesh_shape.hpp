// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <cstddef>
#include <string>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

inline constexpr std::size_t max_axes = 4;

/// A coordinate on each axis of a mesh; zero on axes that the mesh does not have.
using Coordinates = std::array<int, max_axes>;

/// A set of a mesh's axes, as bits: axis a is 1 << a.
using AxisSet = unsigned;

/// The sizes of a mesh's axes. The last axis varies fastest: ranks that differ only on it are adjacent.
struct MeshShape {
  Coordinates sizes{1, 1, 1, 1};
  std::size_t axes = 0;

  [[nodiscard]] constexpr int ranks() const noexcept {
    int all = 1;
    for (std::size_t axis = 0; axis < axes; ++axis) all *= sizes[axis];
    return all;
  }
  [[nodiscard]] constexpr Coordinates coordinates(int rank) const noexcept {
    Coordinates coordinates{};
    for (std::size_t axis = axes; axis-- > 0; rank /= sizes[axis]) coordinates[axis] = rank % sizes[axis];
    return coordinates;
  }
  [[nodiscard]] constexpr int rank(const Coordinates& coordinates) const noexcept {
    int rank = 0;
    for (std::size_t axis = 0; axis < axes; ++axis) rank = rank * sizes[axis] + coordinates[axis];
    return rank;
  }
  /// `2 x 3`
  [[nodiscard]] std::string to_string() const {
    std::string text;
    for (std::size_t axis = 0; axis < axes; ++axis) text += (axis == 0 ? "" : " x ") + std::to_string(sizes[axis]);
    return text;
  }
  friend constexpr bool operator==(const MeshShape&, const MeshShape&) = default;
};

}  // namespace distx::inline DISTX_ABI::detail
