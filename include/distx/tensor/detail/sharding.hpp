// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>

#include "distx/tensor/detail/box.hpp"
#include "distx/tensor/mesh_shape.hpp"

namespace distx {

/// @name How an extent n is cut into p parts
/// @{

/// n*i/p: where part i begins, and part i - 1 ends.
[[nodiscard]] constexpr std::size_t cut_at(std::size_t n, std::size_t i, std::size_t p) noexcept {
  return n / p * i + n % p * i / p;  // without overflow
}
/// The part that has an index. @pre index < n
[[nodiscard]] constexpr std::size_t part_of(std::size_t n, std::size_t index, std::size_t p) noexcept {
  return ((index + 1) * p - 1) / n;  // the largest i with n*i/p <= index
}
/// @}

/// Which axes of a mesh cut which dimensions of a tensor, so what lies where: the shards of a layout, as a value.
///
/// @post the boxes of the ranks that differ only on axes that cut are disjoint, and together the whole tensor
class Sharding {
 public:
  /// The axes that cut a dimension, the first one first.
  struct Axes {
    std::size_t count = 0;
    std::array<std::size_t, most_axes> axis{};

    friend constexpr bool operator==(const Axes&, const Axes&) = default;
    /// Whether `other` begins with these.
    [[nodiscard]] constexpr bool begins(const Axes& other) const noexcept { return common(other) == count; }
    /// With how many axes both begin.
    [[nodiscard]] constexpr std::size_t common(const Axes& other) const noexcept {
      std::size_t same = 0;
      while (same < count && same < other.count && axis[same] == other.axis[same]) ++same;
      return same;
    }
  };

  constexpr Sharding() noexcept = default;
  template <std::size_t Rank>
  constexpr Sharding(const MeshShape& mesh, const Extents<Rank>& extents) noexcept : mesh_(mesh) {
    static_assert(Rank <= most_dimensions, "distx: a tensor has at most 8 dimensions");
    whole_.dimensions = Rank;
    for (std::size_t d = 0; d < Rank; ++d) whole_.size[d] = extents[d];
  }

  /// Has the axis cut what the axes before it have left of the dimension; an axis of one rank cuts nothing.
  constexpr void cut(std::size_t dim, std::size_t axis) noexcept {
    if (mesh_.sizes[axis] > 1) axes_[dim].axis[axes_[dim].count++] = axis;
  }

  [[nodiscard]] constexpr const MeshShape& mesh() const noexcept { return mesh_; }
  [[nodiscard]] constexpr const Box& whole() const noexcept { return whole_; }
  [[nodiscard]] constexpr std::size_t dimensions() const noexcept { return whole_.dimensions; }
  [[nodiscard]] constexpr const Axes& axes(std::size_t dim) const noexcept { return axes_[dim]; }
  /// All axes that cut a dimension.
  [[nodiscard]] constexpr AxisSet cutting() const noexcept {
    AxisSet set = 0;
    for (const auto& list : axes_)
      for (std::size_t i = 0; i < list.count; ++i) set |= 1U << list.axis[i];
    return set;
  }

  /// What lies at a place of the mesh: its offset and its local extents.
  [[nodiscard]] constexpr Box box(const Coordinates& places) const noexcept {
    Box part = whole_;
    for (std::size_t d = 0; d < whole_.dimensions; ++d)
      for (std::size_t i = 0; i < axes_[d].count; ++i) {
        const std::size_t axis = axes_[d].axis[i], n = part.size[d], p = static_cast<std::size_t>(mesh_.sizes[axis]);
        const std::size_t place = static_cast<std::size_t>(places[axis]), first = cut_at(n, place, p);
        part.begin[d] += first;
        part.size[d] = cut_at(n, place + 1, p) - first;
      }
    return part;
  }
  [[nodiscard]] constexpr Box box(int rank) const noexcept { return box(mesh_.coordinates(rank)); }

  /// The place that has an element: zero on the axes that do not cut, on which every other place has it too.
  /// @pre each index is below its extent
  template <std::size_t Rank>
  [[nodiscard]] constexpr Coordinates owner(const Extents<Rank>& index) const noexcept {
    Coordinates places{};
    for (std::size_t d = 0; d < Rank; ++d) {
      std::size_t left = index[d], n = whole_.size[d];
      for (std::size_t i = 0; i < axes_[d].count; ++i) {
        const std::size_t axis = axes_[d].axis[i], p = static_cast<std::size_t>(mesh_.sizes[axis]);
        const std::size_t part = part_of(n, left, p), first = cut_at(n, part, p);
        places[axis] = static_cast<int>(part);
        left -= first;
        n = cut_at(n, part + 1, p) - first;
      }
    }
    return places;
  }

  friend constexpr bool operator==(const Sharding&, const Sharding&) = default;

 private:
  MeshShape mesh_{};
  Box whole_{};
  std::array<Axes, most_dimensions> axes_{};
};

/// @name Between indices of the whole tensor and of one rank's part
/// @{

/// @pre the part has such an index
template <std::size_t Rank>
[[nodiscard]] constexpr Extents<Rank> global_index(const Box& part, Extents<Rank> local) noexcept {
  for (std::size_t d = 0; d < Rank; ++d) local[d] += part.begin[d];
  return local;
}
/// Nothing where the part does not have the element.
template <std::size_t Rank>
[[nodiscard]] constexpr std::optional<Extents<Rank>> local_index(const Box& part, Extents<Rank> global) noexcept {
  if (!part.contains(global)) return std::nullopt;
  for (std::size_t d = 0; d < Rank; ++d) global[d] -= part.begin[d];
  return global;
}
/// @}

}  // namespace distx
