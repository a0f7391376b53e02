// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/mesh.hpp"

namespace distx::inline DISTX_ABI::rules {

/// The placement of a tensor on one axis of the mesh, as a value: the argument and the result of a rule.
struct AxisPlacement {
  enum class Kind : unsigned char { unsupported, replicated, shard, partial };

  Kind kind = Kind::unsupported;
  std::size_t dim = 0;         ///< of a shard
  OpKind op = OpKind::sum;     ///< of a partial; of a rule's result, sum or max: others are unsupported
  std::size_t dimensions = 0;  ///< of the tensor

  [[nodiscard]] constexpr bool is_replicated() const noexcept { return kind == Kind::replicated; }
  [[nodiscard]] constexpr bool is_partial() const noexcept { return kind == Kind::partial; }
  [[nodiscard]] constexpr bool is_shard() const noexcept { return kind == Kind::shard; }
  [[nodiscard]] constexpr bool is_shard(std::size_t of) const noexcept { return is_shard() && dim == of; }
  /// Whether the last dimension is sharded, so that no rank holds a whole row.
  [[nodiscard]] constexpr bool shards_last_dim() const noexcept { return is_shard() && dim + 1 == dimensions; }
  /// Whether another dimension is sharded, so that each row is whole.
  [[nodiscard]] constexpr bool shards_other_dim() const noexcept { return is_shard() && dim + 1 < dimensions; }
  /// Whether the tensor is Partial with Sum, so that linear functions apply to the terms.
  [[nodiscard]] constexpr bool is_sum() const noexcept { return is_partial() && op == OpKind::sum; }
  /// Whether the tensor is Partial with Max.
  [[nodiscard]] constexpr bool is_max() const noexcept { return is_partial() && op == OpKind::max; }
  /// Returns the index of the last dimension.
  [[nodiscard]] constexpr std::size_t last() const noexcept { return dimensions - 1; }

  friend constexpr bool operator==(const AxisPlacement&, const AxisPlacement&) = default;
};

/// @name The results of a rule
/// @{
/// The operation does not compile.
inline constexpr AxisPlacement unsupported{};
/// The result is replicated.
inline constexpr AxisPlacement replicated{AxisPlacement::Kind::replicated};
/// The result is Partial with Sum.
inline constexpr AxisPlacement partial_sum{AxisPlacement::Kind::partial, 0, OpKind::sum};
/// The result is Partial with Max.
inline constexpr AxisPlacement partial_max{AxisPlacement::Kind::partial, 0, OpKind::max};
/// Dimension `dim` of the result is sharded.
[[nodiscard]] constexpr AxisPlacement shard(std::size_t dim) noexcept { return {AxisPlacement::Kind::shard, dim}; }
/// @}

}  // namespace distx::inline DISTX_ABI::rules

namespace distx::inline DISTX_ABI::detail {

using rules::AxisPlacement;

/// The value of a placement type.
template <class P>
constexpr AxisPlacement axis_placement(std::size_t dimensions) noexcept {
  if constexpr (is_shard<P>)
    return {AxisPlacement::Kind::shard, P::dim, OpKind::sum, dimensions};
  else if constexpr (is_partial<P>)
    return {AxisPlacement::Kind::partial, 0, kind_of<typename P::op>(), dimensions};
  else
    return {AxisPlacement::Kind::replicated, 0, OpKind::sum, dimensions};
}

/// The placement type of a value.
template <class Axis, AxisPlacement::Kind Kind, std::size_t Dim, OpKind Op>
struct PlacementType {
  using type = Replicated<Axis>;
};
template <class Axis, std::size_t Dim, OpKind Op>
struct PlacementType<Axis, AxisPlacement::Kind::shard, Dim, Op> {
  using type = Shard<Dim, Axis>;
};
template <class Axis, std::size_t Dim>
struct PlacementType<Axis, AxisPlacement::Kind::partial, Dim, OpKind::sum> {
  using type = Partial<Axis>;
};
template <class Axis, std::size_t Dim>
struct PlacementType<Axis, AxisPlacement::Kind::partial, Dim, OpKind::max> {
  using type = Partial<Axis, Max>;
};

}  // namespace distx::inline DISTX_ABI::detail
