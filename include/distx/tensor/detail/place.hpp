// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/mesh.hpp"

namespace distx {

/// What a tensor's layout says of one axis of the mesh, as a value: rules are functions of these.
struct AxisPlace {
  enum class Kind : unsigned char { refused, replicated, shard, partial };

  Kind kind = Kind::refused;
  std::size_t dim = 0;         ///< of a shard
  OpKind op = OpKind::sum;     ///< of a partial
  std::size_t dimensions = 0;  ///< of the tensor

  [[nodiscard]] constexpr bool is_replicated() const noexcept { return kind == Kind::replicated; }
  [[nodiscard]] constexpr bool is_partial() const noexcept { return kind == Kind::partial; }
  [[nodiscard]] constexpr bool is_shard() const noexcept { return kind == Kind::shard; }
  [[nodiscard]] constexpr bool is_shard(std::size_t of) const noexcept { return is_shard() && dim == of; }
  /// Along the last dimension, in which a row's elements lie.
  [[nodiscard]] constexpr bool cuts_rows() const noexcept { return is_shard() && dim + 1 == dimensions; }
  /// Along another dimension, so that each row is whole.
  [[nodiscard]] constexpr bool keeps_rows() const noexcept { return is_shard() && dim + 1 < dimensions; }
  /// Partial with Sum, so that what is linear may be done to the terms.
  [[nodiscard]] constexpr bool is_sum() const noexcept { return is_partial() && op == OpKind::sum; }
  [[nodiscard]] constexpr bool is_max() const noexcept { return is_partial() && op == OpKind::max; }
  [[nodiscard]] constexpr std::size_t last() const noexcept { return dimensions - 1; }

  friend constexpr bool operator==(const AxisPlace&, const AxisPlace&) = default;
};

/// @name What a rule gives for one axis
/// @{
namespace places {

inline constexpr AxisPlace none{};
inline constexpr AxisPlace replicated{AxisPlace::Kind::replicated};
inline constexpr AxisPlace sum{AxisPlace::Kind::partial, 0, OpKind::sum};
inline constexpr AxisPlace max{AxisPlace::Kind::partial, 0, OpKind::max};
[[nodiscard]] constexpr AxisPlace shard(std::size_t dim) noexcept { return {AxisPlace::Kind::shard, dim}; }

}  // namespace places
/// @}

namespace detail {

/// A placement as a value.
template <class P>
constexpr AxisPlace place_of(std::size_t dimensions) noexcept {
  if constexpr (is_shard<P>)
    return {AxisPlace::Kind::shard, P::dim, OpKind::sum, dimensions};
  else if constexpr (is_partial<P>)
    return {AxisPlace::Kind::partial, 0, kind_of<typename P::op>(), dimensions};
  else
    return {AxisPlace::Kind::replicated, 0, OpKind::sum, dimensions};
}

/// And back.
template <class Axis, AxisPlace::Kind Kind, std::size_t Dim, OpKind Op>
struct Placed;
template <class Axis, std::size_t Dim, OpKind Op>
struct Placed<Axis, AxisPlace::Kind::refused, Dim, Op> {
  using type = Replicated<Axis>;
};
template <class Axis, std::size_t Dim, OpKind Op>
struct Placed<Axis, AxisPlace::Kind::replicated, Dim, Op> {
  using type = Replicated<Axis>;
};
template <class Axis, std::size_t Dim, OpKind Op>
struct Placed<Axis, AxisPlace::Kind::shard, Dim, Op> {
  using type = Shard<Dim, Axis>;
};
template <class Axis, std::size_t Dim>
struct Placed<Axis, AxisPlace::Kind::partial, Dim, OpKind::sum> {
  using type = Partial<Axis>;
};
template <class Axis, std::size_t Dim>
struct Placed<Axis, AxisPlace::Kind::partial, Dim, OpKind::max> {
  using type = Partial<Axis, Max>;
};

}  // namespace detail

}  // namespace distx
