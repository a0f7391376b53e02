// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <span>

#include "distx/comm/arguments.hpp"
#include "distx/tensor/dist_tensor.hpp"

// Tensors from nothing and from this rank's part. None of these communicates.
namespace distx {

namespace detail {

/// Calls f with the global index of each element of a box, row by row.
template <std::size_t Rank, class F>
void for_each_index(const Box& box, F&& f) {
  Extents<Rank> index{};
  std::copy_n(box.begin.begin(), Rank, index.begin());
  for (std::size_t left = box.volume(); left > 0; --left) {
    f(std::as_const(index));
    for (std::size_t d = Rank; d-- > 0;) {
      if (++index[d] < box.begin[d] + box.size[d]) break;
      index[d] = box.begin[d];
    }
  }
}

template <class L>
constexpr bool has_values() {
  static_assert(!L::has_partial,
                "distx: the elements of a Partial are sums of terms: give this rank's terms with from_local");
  return !L::has_partial;
}

/// The output function of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
constexpr std::uint64_t mixed_bits(std::uint64_t z) noexcept {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

}  // namespace detail

/// @name Made from extents: `zeros<float, Shard<0, Data>>(mesh, {4, 6})`
/// The placements that follow the element type are those of the tensor.
/// @{
template <class T, class... Ps, MeshType MeshT, std::size_t Rank>
[[nodiscard]] auto zeros(const MeshT& mesh, const Extents<Rank>& extents) {
  return DistTensor<T, Rank, MeshT, Layout<Ps...>>(mesh, extents);
}
/// `f(index)` gives the element at a global index, an array.
template <class T, class... Ps, MeshType MeshT, std::size_t Rank, class F>
  requires std::invocable<F&, const Extents<Rank>&>
[[nodiscard]] auto generate(const MeshT& mesh, const Extents<Rank>& extents, F&& f) {
  DistTensor<T, Rank, MeshT, Layout<Ps...>> made({mesh, extents}, uninitialized);
  if constexpr (detail::has_values<Layout<Ps...>>()) {
    T* to = made.local().data();
    detail::for_each_index<Rank>(made.box(), [&](const Extents<Rank>& index) { *to++ = static_cast<T>(f(index)); });
  }
  return made;
}
template <class T, class... Ps, MeshType MeshT, std::size_t Rank>
[[nodiscard]] auto full(const MeshT& mesh, const Extents<Rank>& extents, std::type_identity_t<T> value) {
  DistTensor<T, Rank, MeshT, Layout<Ps...>> made({mesh, extents}, uninitialized);
  if constexpr (detail::has_values<Layout<Ps...>>()) fill(HostStream{}, made.local(), value);
  return made;
}
template <class T, class... Ps, MeshType MeshT, std::size_t Rank>
[[nodiscard]] auto ones(const MeshT& mesh, const Extents<Rank>& extents) {
  return full<T, Ps...>(mesh, extents, static_cast<T>(1.0F));
}
/// Uniform in [low, high), each from the seed and its global index alone: the same tensor in every layout.
template <FloatingElement T, class... Ps, MeshType MeshT, std::size_t Rank>
[[nodiscard]] auto random(const MeshT& mesh, const Extents<Rank>& extents, std::uint64_t seed, double low = 0,
                          double high = 1) {
  return generate<T, Ps...>(mesh, extents, [&](const Extents<Rank>& index) {
    std::uint64_t at = 0;
    for (std::size_t d = 0; d < Rank; ++d) at = at * extents[d] + index[d];
    const std::uint64_t bits = detail::mixed_bits(detail::mixed_bits(seed) + (at + 1) * 0x9e3779b97f4a7c15U);
    // 24 bits, so that rounding never gives `high` to a float.
    return static_cast<accumulator_t<T>>(low + (high - low) * (static_cast<double>(bits >> 40) * 0x1p-24));
  });
}

template <class T, class... Ps, MeshType MeshT, std::size_t Rank>
[[nodiscard]] auto zeros(const MeshT& mesh, const std::size_t (&extents)[Rank]) {
  return zeros<T, Ps...>(mesh, std::to_array(extents));
}
template <class T, class... Ps, MeshType MeshT, std::size_t Rank, class F>
  requires std::invocable<F&, const Extents<Rank>&>
[[nodiscard]] auto generate(const MeshT& mesh, const std::size_t (&extents)[Rank], F&& f) {
  return generate<T, Ps...>(mesh, std::to_array(extents), f);
}
template <class T, class... Ps, MeshType MeshT, std::size_t Rank>
[[nodiscard]] auto full(const MeshT& mesh, const std::size_t (&extents)[Rank], std::type_identity_t<T> value) {
  return full<T, Ps...>(mesh, std::to_array(extents), value);
}
template <class T, class... Ps, MeshType MeshT, std::size_t Rank>
[[nodiscard]] auto ones(const MeshT& mesh, const std::size_t (&extents)[Rank]) {
  return ones<T, Ps...>(mesh, std::to_array(extents));
}
template <FloatingElement T, class... Ps, MeshType MeshT, std::size_t Rank>
[[nodiscard]] auto random(const MeshT& mesh, const std::size_t (&extents)[Rank], std::uint64_t seed, double low = 0,
                          double high = 1) {
  return random<T, Ps...>(mesh, std::to_array(extents), seed, low, high);
}
/// @}

/// @name Made from this rank's part
/// The one way to begin with a tensor that is Partial: its parts are terms.
/// @throws MismatchError where the part has not as many elements as the layout gives to this rank
/// @{

/// Copies `values`.
template <class... Ps, MeshType MeshT, std::size_t Rank, SpanArgument Values>
[[nodiscard]] auto from_local(const MeshT& mesh, const Extents<Rank>& extents, const Values& values) {
  using T = detail::value_t<const Values>;
  TensorPlace<Rank, MeshT, Layout<Ps...>> place(mesh, extents);
  DistTensorRef<const T, Rank, MeshT, Layout<Ps...>> part(place, detail::as_const(detail::as_span(values)));
  DistTensor<T, Rank, MeshT, Layout<Ps...>> made(std::move(place), uninitialized);
  copy(HostStream{}, made.local(), part.local());
  return made;
}
template <class... Ps, MeshType MeshT, std::size_t Rank, SpanArgument Values>
[[nodiscard]] auto from_local(const MeshT& mesh, const std::size_t (&extents)[Rank], const Values& values) {
  return from_local<Ps...>(mesh, std::to_array(extents), values);
}
/// Takes the memory.
template <class... Ps, MeshType MeshT, std::size_t Rank, class T, class Space>
[[nodiscard]] auto from_local(const MeshT& mesh, const Extents<Rank>& extents, Buffer<T, Space>&& values) {
  using Made = DistTensor<T, Rank, MeshT, Layout<Ps...>, Space>;
  return Made(typename Made::place_type(mesh, extents), std::move(values));
}
/// @}

}  // namespace distx
