// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/copy_box.hpp"
#include "distx/tensor/make_tensor.hpp"

// Between a tensor that one process has whole and one that is spread over a mesh.
namespace distx {

namespace detail {

template <class X>
inline constexpr bool is_tensor_ref = false;
template <class T, std::size_t Rank, class Space>
inline constexpr bool is_tensor_ref<TensorRef<T, Rank, Space>> = true;
template <class X>
inline constexpr bool is_tensor = false;
template <class T, std::size_t Rank, class Space>
inline constexpr bool is_tensor<Tensor<T, Rank, Space>> = true;

template <class T, std::size_t Rank, class Space>
TensorRef<const T, Rank, Space> const_tensor_ref(TensorRef<T, Rank, Space> x) {
  return x;
}
template <class T, std::size_t Rank, class Space>
TensorRef<const T, Rank, Space> const_tensor_ref(TensorRef<const T, Rank, Space> x) {
  return x;
}
template <class T, std::size_t Rank, class Space>
TensorRef<const T, Rank, Space> const_tensor_ref(const Tensor<T, Rank, Space>& x) {
  return x.ref();
}

template <MemorySpace Space>
std::byte* copy_boxes_out(std::byte* to, const std::byte* from, const Box& whole, const std::vector<Box>& boxes,
                          std::size_t width) {
  for (const auto& box : boxes) {
    copy_box(typename Space::stream{}, to, box, from, whole, box, width);
    to += box.volume() * width;
  }
  return to;
}

/// The root packs every rank's box and sends it.
template <MemorySpace Space>
void scatter_boxes(MeshStateIn<Space>& mesh, const Sharding& sharding, Span<const AnyElement, Space> whole,
                   Span<AnyElement, Space> part, int root, const std::source_location& location) {
  std::vector<std::size_t> counts;
  Buffer<std::byte, Space> packed;
  const std::size_t width = part.element_bytes();
  std::size_t total = 0;
  if (mesh.rank == root) {
    std::vector<Box> boxes;
    for (int rank = 0; rank < mesh.shape.ranks(); ++rank) {
      boxes.push_back(sharding.box(rank));
      counts.push_back(boxes.back().volume());
      total += counts.back();
    }
    packed = Buffer<std::byte, Space>(total * width, uninitialized);
    copy_boxes_out<Space>(packed.data(), whole.bytes(), sharding.whole(), boxes, width);
  }
  mesh.world.execute(Scatter<AnyElement, Space>{
      Span<const AnyElement, Space>(packed.data(), total, part.type(), width), part, root, counts, location});
}

/// Each rank that stands where the root does on all axes that do not cut sends its box.
template <MemorySpace Space>
void gather_boxes(MeshStateIn<Space>& mesh, const Sharding& sharding, Span<const AnyElement, Space> part,
                  Span<AnyElement, Space> whole, int root, const std::source_location& location) {
  const AxisSet cutting = sharding.cutting();
  const Coordinates at_root = mesh.shape.coordinates(root);
  const auto sends = [&](const Coordinates& places) {
    for (std::size_t axis = 0; axis < mesh.shape.axes; ++axis)
      if ((cutting >> axis & 1U) == 0 && places[axis] != at_root[axis]) return false;
    return true;
  };
  std::vector<std::size_t> counts;
  std::vector<Box> boxes;
  Buffer<std::byte, Space> packed;
  const std::size_t width = part.element_bytes();
  std::size_t total = 0;
  if (mesh.rank == root) {
    for (int rank = 0; rank < mesh.shape.ranks(); ++rank) {
      const Coordinates places = mesh.shape.coordinates(rank);
      counts.push_back(0);
      if (!sends(places)) continue;
      boxes.push_back(sharding.box(places));
      counts.back() = boxes.back().volume();
      total += counts.back();
    }
    packed = Buffer<std::byte, Space>(total * width, uninitialized);
  }
  mesh.world.execute(Gather<AnyElement, Space>{
      sends(mesh.places) ? part : part.subspan(0, 0),
      Span<AnyElement, Space>(packed.data(), total, part.type(), width), root, counts, location});
  const std::byte* from = packed.data();
  for (const auto& box : boxes) {
    copy_box(typename Space::stream{}, whole.bytes(), sharding.whole(), from, box, box, width);
    from += box.volume() * width;
  }
}

}  // namespace detail

/// A tensor that this process has whole: a `TensorRef` or a `Tensor`.
template <class X>
concept WholeTensor = requires(const X& x) { detail::const_tensor_ref(x); };

/// Each rank's part of a tensor that every rank has whole, the same: no communication.
template <class... Ps, MeshType MeshT, WholeTensor Whole>
[[nodiscard]] auto distribute(const MeshT& mesh, const Whole& whole) {
  const auto x = detail::const_tensor_ref(whole);
  using Space = typename Whole::space;
  using Made = DistTensor<typename Whole::value_type, x.rank(), MeshT, Layout<Ps...>, Space>;
  Made made({mesh, x.extents()}, uninitialized);
  if constexpr (detail::has_values<Layout<Ps...>>())
    copy_box(typename Space::stream{}, Span<AnyElement, Space>(made.local()).bytes(), made.box(),
             Span<const AnyElement, Space>(x.values()).bytes(), made.sharding().whole(), made.box(),
             sizeof(typename Whole::value_type));
  return made;
}

/// Each rank's part of a tensor that the root has whole; what the other ranks pass is not looked at. Collective.
template <class... Ps, MeshType MeshT, WholeTensor Whole>
[[nodiscard]] auto scatter(const MeshT& mesh, const Whole& whole, int root,
                           std::source_location location = std::source_location::current()) {
  const auto x = detail::const_tensor_ref(whole);
  using Space = typename Whole::space;
  auto& state = detail::in_space<Space>(mesh.state());
  std::array<std::uint64_t, most_dimensions> words{};
  std::copy(x.extents().begin(), x.extents().end(), words.begin());
  state.world.execute(Broadcast<std::uint64_t, Space>{Span<std::uint64_t>(words), root, location});
  Extents<x.rank()> extents{};
  std::copy_n(words.begin(), x.rank(), extents.begin());
  DistTensor<typename Whole::value_type, x.rank(), MeshT, Layout<Ps...>, Space> made({mesh, extents}, uninitialized);
  if constexpr (detail::has_values<Layout<Ps...>>())
    detail::scatter_boxes<Space>(state, made.sharding(), x.values(), made.local(), root, location);
  return made;
}

/// The whole tensor at the root; elsewhere one without elements. Collective.
template <DistributedTensor X>
[[nodiscard]] auto gather(const X& x, int root, std::source_location location = std::source_location::current()) {
  using Space = typename X::space;
  constexpr std::size_t rank = rank_of<X>;
  static_assert(!layout_of<X>::has_partial, "distx: gather: the tensor is Partial: redistribute it first");
  Tensor<value_of<X>, rank, Space> whole;
  if constexpr (!layout_of<X>::has_partial) {
    if (x.mesh().rank() == root) whole = Tensor<value_of<X>, rank, Space>(x.extents());
    detail::gather_boxes<Space>(detail::in_space<Space>(x.mesh().state()),
                                sharding_of<layout_of<X>, mesh_of<X>>(x.mesh().shape(), x.extents()),
                                Span<const value_of<X>, Space>(x.local()), Span<value_of<X>, Space>(whole.values()),
                                root, location);
  }
  return whole;
}

}  // namespace distx
