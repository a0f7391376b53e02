// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <cstddef>
#include <string>

namespace distx {

inline constexpr std::size_t most_axes = 4;

/// A place on each axis of a mesh; zero on those that it does not have.
using Coordinates = std::array<int, most_axes>;

/// The sizes of a mesh's axes. The last axis runs fastest: ranks that differ on it alone are neighbours.
struct MeshShape {
  Coordinates sizes{1, 1, 1, 1};
  std::size_t axes = 0;

  [[nodiscard]] constexpr int ranks() const noexcept {
    int all = 1;
    for (std::size_t axis = 0; axis < axes; ++axis) all *= sizes[axis];
    return all;
  }
  [[nodiscard]] constexpr Coordinates coordinates(int rank) const noexcept {
    Coordinates places{};
    for (std::size_t axis = axes; axis-- > 0; rank /= sizes[axis]) places[axis] = rank % sizes[axis];
    return places;
  }
  [[nodiscard]] constexpr int rank(const Coordinates& places) const noexcept {
    int rank = 0;
    for (std::size_t axis = 0; axis < axes; ++axis) rank = rank * sizes[axis] + places[axis];
    return rank;
  }
  /// `2 x 3`
  [[nodiscard]] std::string to_string() const {
    std::string words;
    for (std::size_t axis = 0; axis < axes; ++axis) words += (axis == 0 ? "" : " x ") + std::to_string(sizes[axis]);
    return words;
  }
  friend constexpr bool operator==(const MeshShape&, const MeshShape&) = default;
};

/// Some of a mesh's axes, as bits: axis a is 1 << a.
using AxisSet = unsigned;

}  // namespace distx
