// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/detail/sharding.hpp"
#include "distx/tensor/mesh.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

template <class MeshT, class P>
constexpr void shard_dimension(Sharding& sharding) {
  if constexpr (is_shard<P>) sharding.shard(P::dim, MeshT::template index_of<typename P::axis>());
}
/// Whether a tensor of this rank has the dimension that P shards, if P is a Shard.
template <class P, std::size_t Rank>
inline constexpr bool is_dim_known = true;
template <std::size_t Dim, class Axis, std::size_t Rank>
inline constexpr bool is_dim_known<Shard<Dim, Axis>, Rank> = Dim < Rank;
template <class L>
struct LayoutFacts;
template <class... Ps>
struct LayoutFacts<Placements<Ps...>> {
  template <class MeshT>
  static constexpr bool axes_known = (MeshT::template has_axis<typename Ps::axis> && ...);
  template <std::size_t Rank>
  static constexpr bool dims_known = (is_dim_known<Ps, Rank> && ...);
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
template <>
struct LayoutFacts<PlaceholderLayout> : LayoutFacts<Placements<>> {};
template <class L, class MeshT>
constexpr AxisSet partial_axes() {
  return LayoutFacts<L>::template partial_axes<MeshT>();
}

template <class L, class MeshT>
struct ShardDimensions;
template <class L, class... Axes>
struct ShardDimensions<L, Mesh<Axes...>> {
  static constexpr void apply(Sharding& sharding) {
    (shard_dimension<Mesh<Axes...>, placement_on<L, Axes>>(sharding), ...);
  }
};

/// The shards of a tensor of these extents with layout `L` on a mesh of this type and shape.
template <class L, class MeshT, std::size_t Rank>
[[nodiscard]] constexpr Sharding sharding_of(const MeshShape& shape, const Extents<Rank>& extents) noexcept {
  Sharding sharding(shape, extents);
  ShardDimensions<L, MeshT>::apply(sharding);
  return sharding;
}

struct SpecAccess;

}  // namespace detail

/// The mesh and the extents of a distributed tensor, and which part of it this rank holds by layout `L`.
///
/// The base of `DistTensor`, `DistTensorRef` and `TensorParameter`; it holds no elements.
template <std::size_t Rank, detail::MeshType MeshT, class L>
class DistTensorSpec {
  static_assert(detail::is_layout<L>, "distx: the layout of a tensor must be a Layout<Shard<Dim, Axis>, …>");
  static_assert(detail::LayoutFacts<L>::template axes_known<MeshT>,
                "distx: the layout names an axis that the mesh does not have");
  static_assert(detail::LayoutFacts<L>::template dims_known<Rank>,
                "distx: the layout shards a dimension that the tensor does not have");

 public:
  using mesh_type = MeshT;
  using layout_type = L;

  /// Describes a tensor of these extents on `mesh`. Local.
  DistTensorSpec(MeshT mesh, const Extents<Rank>& extents)
      : mesh_(std::move(mesh)),
        extents_(extents),
        box_(detail::sharding_of<L, MeshT>(detail::shape_of(mesh_), extents_).box(mesh_.rank())) {}

  /// Returns the number of dimensions, which std::mdspan calls so too; the rank of this process is `mesh().rank()`.
  [[nodiscard]] static constexpr std::size_t rank() noexcept { return Rank; }
  [[nodiscard]] const MeshT& mesh() const noexcept { return mesh_; }
  /// Returns the extents of the whole tensor.
  [[nodiscard]] const Extents<Rank>& extents() const noexcept { return extents_; }
  /// Returns one extent of the whole tensor.
  [[nodiscard]] std::size_t extent(std::size_t dim) const noexcept { return extents_[dim]; }
  /// Returns the extents of this rank's part; if one of them is zero, the part is empty.
  [[nodiscard]] Extents<Rank> local_extents() const noexcept { return first(box_.size); }
  /// Returns the global index of the first element of this rank's part.
  [[nodiscard]] Extents<Rank> offset() const noexcept { return first(box_.begin); }

 protected:
  /// Returns the number of elements of this rank's part.
  [[nodiscard]] std::size_t local_volume() const noexcept { return volume(local_extents()); }

 private:
  friend struct detail::SpecAccess;
  [[nodiscard]] static Extents<Rank> first(const std::array<std::size_t, detail::max_dimensions>& values) noexcept {
    Extents<Rank> some{};
    for (std::size_t i = 0; i < Rank; ++i) some[i] = values[i];
    return some;
  }

  MeshT mesh_;
  Extents<Rank> extents_;
  detail::Box box_;
};

namespace detail {

struct SpecAccess {
  template <std::size_t Rank, class MeshT, class L>
  [[nodiscard]] static const Box& box(const DistTensorSpec<Rank, MeshT, L>& spec) noexcept {
    return spec.box_;
  }
};

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
