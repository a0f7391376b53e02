// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/detail/sharding.hpp"
#include "distx/tensor/mesh.hpp"

namespace distx {

namespace detail {

template <class MeshT, class P>
constexpr void cut_by(Sharding& sharding) {
  if constexpr (is_shard<P>) sharding.cut(P::dim, MeshT::template index_of<typename P::axis>());
}
template <class L>
struct LayoutFacts;
template <class... Ps>
struct LayoutFacts<Placements<Ps...>> {
  template <class MeshT>
  static constexpr bool axes_known = (MeshT::template has_axis<typename Ps::axis> && ...);
  template <std::size_t Rank>
  static constexpr bool dims_known = ([] {
    if constexpr (is_shard<Ps>)
      return Ps::dim < Rank;
    else
      return true;
  }() && ...);
  template <class MeshT>
  static constexpr AxisSet partial_axes() {
    return (0U | ... | [] {
      if constexpr (is_partial<Ps> && MeshT::template has_axis<typename Ps::axis>)
        return 1U << MeshT::template index_of<typename Ps::axis>();
      else
        return 0U;
    }());
  }
};
template <class L, class MeshT>
constexpr AxisSet partial_axes() {
  return LayoutFacts<L>::template partial_axes<MeshT>();
}

template <class L, class MeshT>
struct Cutter;
template <class L, class... Axes>
struct Cutter<L, Mesh<Axes...>> {
  static constexpr void cut(Sharding& sharding) { (cut_by<Mesh<Axes...>, placement_on<L, Axes>>(sharding), ...); }
};

}  // namespace detail

/// The shards of a tensor of such extents that has this layout on a mesh of this type and shape.
template <class L, class MeshT, std::size_t Rank>
[[nodiscard]] constexpr Sharding sharding_of(const MeshShape& shape, const Extents<Rank>& extents) noexcept {
  Sharding sharding(shape, extents);
  detail::Cutter<L, MeshT>::cut(sharding);
  return sharding;
}

/// Where a tensor lies: its mesh, its extents and, by its layout, this rank's part of it.
template <std::size_t Rank, MeshType MeshT, class L>
class TensorPlace {
  static_assert(detail::is_layout<L>, "distx: the layout of a tensor is a Layout<Shard<Dim, Axis>, …>");
  static_assert(detail::LayoutFacts<L>::template axes_known<MeshT>,
                "distx: the layout names an axis that the mesh has not");
  static_assert(detail::LayoutFacts<L>::template dims_known<Rank>,
                "distx: the layout shards a dimension that the tensor has not");

 public:
  using mesh_type = MeshT;
  using layout_type = L;

  TensorPlace(MeshT mesh, const Extents<Rank>& extents)
      : mesh_(std::move(mesh)), extents_(extents), box_(sharding().box(mesh_.coordinates())) {}

  [[nodiscard]] static constexpr std::size_t rank() noexcept { return Rank; }
  [[nodiscard]] const MeshT& mesh() const noexcept { return mesh_; }
  /// Of the whole tensor.
  [[nodiscard]] const Extents<Rank>& extents() const noexcept { return extents_; }
  [[nodiscard]] std::size_t extent(std::size_t dim) const noexcept { return extents_[dim]; }
  /// Of this rank's part; where any is zero, the part is empty.
  [[nodiscard]] Extents<Rank> local_extents() const noexcept { return first(box_.size); }
  /// The global index of this rank's first element.
  [[nodiscard]] Extents<Rank> offset() const noexcept { return first(box_.begin); }
  /// This rank's part.
  [[nodiscard]] const Box& box() const noexcept { return box_; }
  /// What lies on every rank.
  [[nodiscard]] Sharding sharding() const noexcept { return sharding_of<L, MeshT>(mesh_.shape(), extents_); }

 private:
  [[nodiscard]] static Extents<Rank> first(const std::array<std::size_t, most_dimensions>& values) noexcept {
    Extents<Rank> some{};
    std::copy_n(values.begin(), Rank, some.begin());
    return some;
  }

  MeshT mesh_;
  Extents<Rank> extents_;
  Box box_;
};

}  // namespace distx
