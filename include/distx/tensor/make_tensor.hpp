// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>
#include <cstdint>
#include <span>

#include "distx/comm/arguments.hpp"
#include "distx/tensor/dist_tensor.hpp"

// Creation of distributed tensors from extents and from this rank's part. No function here communicates.
namespace distx::inline DISTX_ABI {

namespace detail {

/// Calls f with the global index of each element of a box, in row-major order.
template <std::size_t Rank, class F>
void for_each_index(const Box& box, F&& f) {
  Extents<Rank> index{};
  for (std::size_t d = 0; d < Rank; ++d) index[d] = box.begin[d];
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
                "distx: a Partial tensor has terms instead of values; pass this rank's terms to from_local");
  return !L::has_partial;
}

/// The template arguments of the functions that create tensors: a memory space, if one is named first, and the layout.
template <class Default, class... Ps>
struct Asked {
  using space = Default;
  using layout = distx::Layout<Ps...>;
};
template <class Default, MemorySpace Space, class... Ps>
struct Asked<Default, Space, Ps...> {
  using space = Space;
  using layout = distx::Layout<Ps...>;
};

/// The output function of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
constexpr std::uint64_t mixed_bits(std::uint64_t z) noexcept {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

}  // namespace detail

/// Copies a tensor to another memory space, with the same layout: `to_space<Cuda>(x)`.
///
/// Local; blocks the host until the copy is complete. One of the two spaces must be the host's.
template <MemorySpace To, DistributedTensor X>
[[nodiscard]] auto to_space(const X& x) {
  using From = typename X::space;
  static_assert(HostAccessible<To> || HostAccessible<From> || std::same_as<To, From>,
                "distx: to_space: neither memory is the host's; copy to the host first");
  DistTensor<detail::value_of<X>, detail::rank_of<X>, detail::mesh_of<X>, detail::layout_of<X>, To> made(
      {x.mesh(), x.extents()}, uninitialized);
  const auto stream = x.mesh().template stream<std::conditional_t<HostAccessible<To>, From, To>>();
  copy(stream, made.local(), Span<const detail::value_of<X>, From>(x.local()));
  stream.synchronize();
  return made;
}

namespace detail {

template <class Wanted, class X>
auto in_asked(X&& x) {
  if constexpr (std::same_as<typename Wanted::space, typename X::space>)
    return std::forward<X>(x);
  else
    return to_space<typename Wanted::space>(x);
}

}  // namespace detail

/// @name Creation from extents
/// The template arguments are the element type, optionally a memory space (the host's by default), and the placements:
/// `zeros<float, Shard<0, Data>>(mesh, {4, 6})`, `zeros<float, Cuda, Shard<0, Data>>(mesh, {4, 6})`. `extents` are
/// those of the whole tensor and equal on all ranks. No function communicates. Values are computed on the host, those
/// of `zeros`, `full` and `ones` in the tensor's memory, in the order of the mesh's stream. In GPU memory `full` and
/// `ones` need the kernels of <distx/cuda_kernels.cuh>.
/// @{

/// Returns a tensor of zeros.
template <class T, class... Ps, detail::MeshType MeshT, std::size_t Rank>
[[nodiscard]] auto zeros(const MeshT& mesh, const Extents<Rank>& extents) {
  using Asked = detail::Asked<Host, Ps...>;
  return DistTensor<T, Rank, MeshT, typename Asked::layout, typename Asked::space>(mesh, extents);
}
/// Returns the tensor whose element at each global index is `f(index)`.
///
/// `f` takes an `Extents<Rank>`, returns what converts to `T`, and must be the same function on all ranks: then the
/// tensor has the same values in every layout. It is called for the elements of this rank's part, in row-major order.
template <class T, class... Ps, detail::MeshType MeshT, std::size_t Rank, class F>
  requires std::invocable<F&, const Extents<Rank>&>
[[nodiscard]] auto generate(const MeshT& mesh, const Extents<Rank>& extents, F&& f) {
  using Asked = detail::Asked<Host, Ps...>;
  DistTensor<T, Rank, MeshT, typename Asked::layout> made({mesh, extents}, uninitialized);
  if constexpr (detail::has_values<typename Asked::layout>()) {
    T* to = made.local().data();
    detail::for_each_index<Rank>(detail::box_of(made),
                                 [&](const Extents<Rank>& index) { *to++ = static_cast<T>(f(index)); });
  }
  return detail::in_asked<Asked>(std::move(made));
}
/// Returns a tensor whose elements are all `value`.
template <class T, class... Ps, detail::MeshType MeshT, std::size_t Rank>
[[nodiscard]] auto full(const MeshT& mesh, const Extents<Rank>& extents, std::type_identity_t<T> value) {
  using Asked = detail::Asked<Host, Ps...>;
  constexpr bool fills = sizeof(T) <= sizeof(std::uint64_t) && std::has_single_bit(sizeof(T)) &&
                         requires(typename Asked::space::stream stream, Span<T, typename Asked::space> values) {
                           fill(stream, values, value);
                         };
  using Space = std::conditional_t<fills, typename Asked::space, Host>;
  DistTensor<T, Rank, MeshT, typename Asked::layout, Space> made({mesh, extents}, uninitialized);
  if constexpr (detail::has_values<typename Asked::layout>()) fill(made.stream(), made.local(), value);
  return detail::in_asked<Asked>(std::move(made));
}
/// Returns a tensor of ones.
template <class T, class... Ps, detail::MeshType MeshT, std::size_t Rank>
[[nodiscard]] auto ones(const MeshT& mesh, const Extents<Rank>& extents) {
  return full<T, Ps...>(mesh, extents, static_cast<T>(1.0F));
}
/// Returns a tensor of uniformly distributed values in [low, high).
///
/// Each value depends only on the seed and the global index, so the tensor is the same in every layout. `T` is a
/// floating-point or reduced-precision type.
template <FloatingElement T, class... Ps, detail::MeshType MeshT, std::size_t Rank>
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

template <class T, class... Ps, detail::MeshType MeshT, std::size_t Rank>
[[nodiscard]] auto zeros(const MeshT& mesh, const std::size_t (&extents)[Rank]) {
  return zeros<T, Ps...>(mesh, std::to_array(extents));
}
template <class T, class... Ps, detail::MeshType MeshT, std::size_t Rank, class F>
  requires std::invocable<F&, const Extents<Rank>&>
[[nodiscard]] auto generate(const MeshT& mesh, const std::size_t (&extents)[Rank], F&& f) {
  return generate<T, Ps...>(mesh, std::to_array(extents), f);
}
template <class T, class... Ps, detail::MeshType MeshT, std::size_t Rank>
[[nodiscard]] auto full(const MeshT& mesh, const std::size_t (&extents)[Rank], std::type_identity_t<T> value) {
  return full<T, Ps...>(mesh, std::to_array(extents), value);
}
template <class T, class... Ps, detail::MeshType MeshT, std::size_t Rank>
[[nodiscard]] auto ones(const MeshT& mesh, const std::size_t (&extents)[Rank]) {
  return ones<T, Ps...>(mesh, std::to_array(extents));
}
template <FloatingElement T, class... Ps, detail::MeshType MeshT, std::size_t Rank>
[[nodiscard]] auto random(const MeshT& mesh, const std::size_t (&extents)[Rank], std::uint64_t seed, double low = 0,
                          double high = 1) {
  return random<T, Ps...>(mesh, std::to_array(extents), seed, low, high);
}
/// @}

/// @name Creation from this rank's part
/// `extents` are those of the whole tensor. Local. This is how a Partial tensor is created: its parts are terms.
/// @throws InvalidArgument if `values` does not have the number of elements that the layout assigns to this rank
/// @{

/// Returns a tensor whose part on this rank is a copy of `values`, in row-major order and in the memory space of
/// `values`.
///
/// The copy is made in the order of the mesh's stream.
template <class... Ps, detail::MeshType MeshT, std::size_t Rank, SpanArgument Values>
[[nodiscard]] auto from_local(const MeshT& mesh, const Extents<Rank>& extents, const Values& values) {
  using T = detail::value_t<const Values>;
  using Space = detail::space_t<const Values>;
  DistTensorSpec<Rank, MeshT, Layout<Ps...>> spec(mesh, extents);
  DistTensorRef<const T, Rank, MeshT, Layout<Ps...>, Space> part(spec, detail::as_const(detail::as_span(values)));
  DistTensor<T, Rank, MeshT, Layout<Ps...>, Space> made(std::move(spec), uninitialized);
  copy(made.stream(), made.local(), part.local());
  return made;
}
template <class... Ps, detail::MeshType MeshT, std::size_t Rank, SpanArgument Values>
[[nodiscard]] auto from_local(const MeshT& mesh, const std::size_t (&extents)[Rank], const Values& values) {
  return from_local<Ps...>(mesh, std::to_array(extents), values);
}
/// Returns a tensor that takes ownership of `values`, this rank's part in row-major order.
template <class... Ps, detail::MeshType MeshT, std::size_t Rank, class T, class Space>
[[nodiscard]] auto from_local(const MeshT& mesh, const Extents<Rank>& extents, Buffer<T, Space>&& values) {
  using Made = DistTensor<T, Rank, MeshT, Layout<Ps...>, Space>;
  return Made(typename Made::spec_type(mesh, extents), std::move(values));
}
/// @}

}  // namespace distx::inline DISTX_ABI
