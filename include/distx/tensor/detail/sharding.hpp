// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/detail/box.hpp"
#include "distx/tensor/detail/mesh_shape.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Where part i of p begins, and part i - 1 ends, of n indices: n*i/p.
[[nodiscard]] constexpr std::size_t part_begin(std::size_t n, std::size_t i, std::size_t p) noexcept {
  return n / p * i + n % p * i / p;  // without overflow
}

/// Which axes of a mesh shard which dimensions of a tensor: the shards of a layout, as a value.
///
/// @post the boxes of the ranks that differ only on sharded axes partition the tensor
class Sharding {
 public:
  /// The axes that shard a dimension, outermost first.
  struct Axes {
    std::size_t count = 0;
    std::array<std::size_t, max_axes> axis{};

    friend constexpr bool operator==(const Axes&, const Axes&) = default;
    /// Whether `other` starts with these axes.
    [[nodiscard]] constexpr bool is_prefix_of(const Axes& other) const noexcept {
      return common_prefix(other) == count;
    }
    /// The number of leading axes that both have in common.
    [[nodiscard]] constexpr std::size_t common_prefix(const Axes& other) const noexcept {
      std::size_t same = 0;
      while (same < count && same < other.count && axis[same] == other.axis[same]) ++same;
      return same;
    }
  };

  constexpr Sharding() noexcept = default;
  template <std::size_t Rank>
  constexpr Sharding(const MeshShape& mesh, const Extents<Rank>& extents) noexcept
      : mesh_(mesh), whole_(whole_box(extents)) {}

  /// Shards what the axes before this one leave of the dimension; an axis of size 1 changes nothing.
  constexpr void shard(std::size_t dim, std::size_t axis) noexcept {
    if (mesh_.sizes[axis] > 1) axes_[dim].axis[axes_[dim].count++] = axis;
  }

  [[nodiscard]] constexpr const MeshShape& mesh() const noexcept { return mesh_; }
  [[nodiscard]] constexpr const Box& whole() const noexcept { return whole_; }
  [[nodiscard]] constexpr std::size_t dimensions() const noexcept { return whole_.dimensions; }
  [[nodiscard]] constexpr const Axes& axes(std::size_t dim) const noexcept { return axes_[dim]; }
  /// All axes that shard some dimension.
  [[nodiscard]] constexpr AxisSet sharded_axes() const noexcept {
    AxisSet set = 0;
    for (const auto& list : axes_)
      for (std::size_t i = 0; i < list.count; ++i) set |= 1U << list.axis[i];
    return set;
  }

  /// The part of the rank at these coordinates.
  [[nodiscard]] constexpr Box box(const Coordinates& coordinates) const noexcept {
    Box part = whole_;
    for (std::size_t d = 0; d < whole_.dimensions; ++d)
      for (std::size_t i = 0; i < axes_[d].count; ++i) {
        const std::size_t axis = axes_[d].axis[i], n = part.size[d], p = static_cast<std::size_t>(mesh_.sizes[axis]);
        const std::size_t coordinate = static_cast<std::size_t>(coordinates[axis]),
                          first = part_begin(n, coordinate, p);
        part.begin[d] += first;
        part.size[d] = part_begin(n, coordinate + 1, p) - first;
      }
    return part;
  }
  [[nodiscard]] constexpr Box box(int rank) const noexcept { return box(mesh_.coordinates(rank)); }

  friend constexpr bool operator==(const Sharding&, const Sharding&) = default;

 private:
  MeshShape mesh_{};
  Box whole_{};
  std::array<Axes, max_dimensions> axes_{};
};

}  // namespace distx::inline DISTX_ABI::detail
