// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/detail/copy_box.hpp"
#include "distx/tensor/make_tensor.hpp"

// Conversions between whole tensors of one process and distributed tensors.
namespace distx::inline DISTX_ABI {

namespace detail {

template <class T, std::size_t Rank, class Space>
TensorRef<const T, Rank, Space> const_tensor_ref(TensorRef<T, Rank, Space> x) {
  return x;
}
template <class T, std::size_t Rank, class Space>
TensorRef<const T, Rank, Space> const_tensor_ref(const Tensor<T, Rank, Space>& x) {
  return x.ref();
}

/// Broadcasts the root's extents.
template <MemorySpace Space, std::size_t Rank>
void broadcast_sizes(MeshStateIn<Space>& mesh, Extents<Rank>& sizes, int root, const std::source_location& location) {
  std::array<std::uint64_t, max_dimensions>
      words{};  // of a fixed length, so that ranks of different dimensions are still comparable
  std::copy(sizes.begin(), sizes.end(), words.begin());
  if constexpr (HostAccessible<Space>) {
    mesh.world.execute(Broadcast<std::uint64_t, Space>{{words.data(), words.size()}, root, location});
  } else {
    const auto there = buffer_on<std::uint64_t, Space>(mesh.stream, words.size(), uninitialized);
    copy(mesh.stream, there.span(), Span<const std::uint64_t>(words));
    execute_after(mesh.world, Broadcast<std::uint64_t, Space>{there.span(), root, location}, mesh.stream);
    copy(mesh.stream, Span<std::uint64_t>(words), there.span());
    mesh.stream.synchronize();
  }
  std::copy_n(words.begin(), Rank, sizes.begin());
}

/// The root packs and sends the box of every rank.
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
    packed = buffer_on<std::byte, Space>(mesh.stream, total * width, uninitialized);
    pack_boxes(mesh.stream, packed.data(), whole.bytes(), sharding.whole(), boxes, width);
  }
  execute_after(mesh.world,
                Scatter<AnyElement, Space>{Span<const AnyElement, Space>(packed.data(), total, part.type(), width),
                                           part, root, counts, location},
                mesh.stream);
}

/// Of the ranks that hold the same box, the one with the root's coordinates on the replicated axes sends it.
template <MemorySpace Space>
void gather_boxes(MeshStateIn<Space>& mesh, const Sharding& sharding, Span<const AnyElement, Space> part,
                  Span<AnyElement, Space> whole, int root, const std::source_location& location) {
  const AxisSet sharded = sharding.sharded_axes();
  const Coordinates at_root = mesh.shape.coordinates(root);
  const auto sends = [&](const Coordinates& coordinates) {
    for (std::size_t axis = 0; axis < mesh.shape.axes; ++axis)
      if ((sharded >> axis & 1U) == 0 && coordinates[axis] != at_root[axis]) return false;
    return true;
  };
  std::vector<std::size_t> counts;
  std::vector<Box> boxes;
  Buffer<std::byte, Space> packed;
  const std::size_t width = part.element_bytes();
  std::size_t total = 0;
  if (mesh.rank == root) {
    for (int rank = 0; rank < mesh.shape.ranks(); ++rank) {
      const Coordinates coordinates = mesh.shape.coordinates(rank);
      counts.push_back(0);
      if (!sends(coordinates)) continue;
      boxes.push_back(sharding.box(coordinates));
      counts.back() = boxes.back().volume();
      total += counts.back();
    }
    packed = buffer_on<std::byte, Space>(mesh.stream, total * width, uninitialized);
  }
  execute_after(mesh.world,
                Gather<AnyElement, Space>{sends(mesh.coordinates) ? part : part.subspan(0, 0),
                                          Span<AnyElement, Space>(packed.data(), total, part.type(), width), root,
                                          counts, location},
                mesh.stream);
  unpack_boxes(mesh.stream, whole.bytes(), sharding.whole(), packed.data(), boxes, width);
}

/// A tensor that this process holds whole: a `TensorRef` or a `Tensor`.
template <class X>
concept WholeTensor = requires(const X& x) { const_tensor_ref(x); };

}  // namespace detail

/// Returns the distributed tensor whose part on this rank is copied from `whole`, which is the same on all ranks.
///
/// `whole` is a `TensorRef` or a `Tensor`. No communication: that `whole` is the same everywhere is not checked. The
/// result is in the memory space of `whole`, or in the space named before the placements, which blocks the host:
/// `distribute<Shard<0, Data>>(mesh, x)`, `distribute<Cuda, Shard<0, Data>>(mesh, host_tensor)`.
template <class... Ps, detail::MeshType MeshT, detail::WholeTensor Whole>
[[nodiscard]] auto distribute(const MeshT& mesh, const Whole& whole) {
  const auto x = detail::const_tensor_ref(whole);
  using T = typename Whole::value_type;
  using From = typename Whole::space;
  using Asked = detail::Asked<From, Ps...>;
  using Part = DistTensor<T, x.rank(), MeshT, typename Asked::layout, From>;
  Part part({mesh, x.extents()}, uninitialized);
  if constexpr (detail::has_values<typename Asked::layout>())
    detail::copy_box(part.stream(), Span<AnyElement, From>(part.local()).bytes(), detail::box_of(part),
                     Span<const AnyElement, From>(x.values()).bytes(), detail::sharding_of(part).whole(),
                     detail::box_of(part), sizeof(T));
  if constexpr (std::same_as<typename Asked::space, From>)
    return part;
  else
    return to_space<typename Asked::space>(part);
}

/// Returns the distributed tensor whose values are those of `whole` on the root.
///
/// Collective over the mesh, ordered on its stream. `whole` is a `TensorRef` or a `Tensor` in the memory space of the
/// mesh; on the other ranks its extents and values are ignored, its type is the root's.
/// @throws InvalidArgument if `root` is not a rank of the mesh
template <class... Ps, detail::MeshType MeshT, detail::WholeTensor Whole>
[[nodiscard]] auto scatter(const MeshT& mesh, const Whole& whole, int root,
                           std::source_location location = std::source_location::current()) {
  const auto x = detail::const_tensor_ref(whole);
  using Space = typename Whole::space;
  auto& state = detail::in_space<Space>(detail::state_of(mesh));
  Extents<x.rank()> extents = x.extents();
  detail::broadcast_sizes<Space>(state, extents, root, location);
  DistTensor<typename Whole::value_type, x.rank(), MeshT, Layout<Ps...>, Space> made({mesh, extents}, uninitialized);
  if constexpr (detail::has_values<Layout<Ps...>>())
    detail::scatter_boxes<Space>(state, detail::sharding_of(made), x.values(), made.local(), root, location);
  return made;
}

/// Returns the whole tensor on the root and an empty `Tensor` on the other ranks.
///
/// Collective over the mesh; blocks the host until the tensor is complete. A Partial tensor does not compile.
/// @throws InvalidArgument if `root` is not a rank of the mesh
template <DistributedTensor X>
[[nodiscard]] auto gather(const X& x, int root, std::source_location location = std::source_location::current()) {
  using T = detail::value_of<X>;
  using Space = typename X::space;
  constexpr std::size_t rank = detail::rank_of<X>;
  static_assert(!detail::layout_of<X>::has_partial, "distx: gather: the tensor is Partial; redistribute it first");
  Tensor<T, rank, Space> whole;
  if constexpr (!detail::layout_of<X>::has_partial) {
    if (x.mesh().rank() == root)
      whole = {x.extents(), detail::buffer_on<T, Space>(detail::stream_of(x), volume(x.extents()), uninitialized)};
    detail::gather_boxes<Space>(detail::in_space<Space>(detail::state_of(x.mesh())), detail::sharding_of(x),
                                Span<const T, Space>(x.local()), Span<T, Space>(whole.values()), root, location);
  }
  return whole;
}
/// Returns the whole tensor in the memory space `To` on the root: `gather<Host>(x, 0)`.
template <MemorySpace To, DistributedTensor X>
[[nodiscard]] auto gather(const X& x, int root, std::source_location location = std::source_location::current()) {
  auto whole = gather(x, root, location);
  if constexpr (std::same_as<To, typename X::space>) {
    return whole;
  } else {
    Tensor<detail::value_of<X>, detail::rank_of<X>, To> there;
    if (x.mesh().rank() == root) {
      there = {x.extents(), Buffer<detail::value_of<X>, To>(volume(x.extents()), uninitialized)};
      copy(detail::stream_of(x), there.values(), std::as_const(whole).values());
      detail::stream_of(x).synchronize();
    }
    return there;
  }
}

}  // namespace distx::inline DISTX_ABI
