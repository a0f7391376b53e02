// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <numeric>

#include "distx/comm/movement.hpp"
#include "distx/tensor/distribute.hpp"

// The collectives on tensors of one process each, which concatenate or split along a dimension.
namespace distx::inline DISTX_ABI {

namespace detail {

/// Consecutive boxes along a dimension of a tensor, of the given sizes.
template <std::size_t Rank>
std::vector<Box> slices(const Extents<Rank>& extents, std::size_t dim, const std::vector<std::size_t>& sizes) {
  Box slice = whole_box(extents);
  std::vector<Box> all;
  for (const auto size : sizes) {
    slice.size[dim] = size;
    all.push_back(slice);
    slice.begin[dim] += size;
  }
  return all;
}
/// The given sizes, or n for each rank, or n partitioned evenly.
inline std::vector<std::size_t> given_or_equal(Counts given, std::size_t n, int ranks) {
  if (!given.empty()) return {given.begin(), given.end()};
  return std::vector<std::size_t>(static_cast<std::size_t>(ranks), n);
}
inline std::vector<std::size_t> given_or_even(Counts given, std::size_t n, int ranks) {
  if (!given.empty()) return {given.begin(), given.end()};
  std::vector<std::size_t> sizes;
  const auto p = static_cast<std::size_t>(ranks);
  for (std::size_t i = 0; i < p; ++i) sizes.push_back(part_begin(n, i + 1, p) - part_begin(n, i, p));
  return sizes;
}
inline std::size_t sum_of(const std::vector<std::size_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
}
inline std::vector<std::size_t> volumes_of(const std::vector<Box>& boxes) {
  std::vector<std::size_t> volumes;
  for (const auto& box : boxes) volumes.push_back(box.volume());
  return volumes;
}

/// @throws InvalidArgument for a dimension that the tensor does not have, or if the sizes are not one per rank
template <class C>
void check_dimension(const C& comm, std::string_view operation, std::size_t dim, std::size_t rank, Counts sizes,
                     const std::source_location& location) {
  const ErrorContext context{operation, comm.backend(), comm.rank(), comm.size(), location};
  if (dim >= rank)
    throw InvalidArgument("invalid dimension " + std::to_string(dim) + ": must be in [0, " + std::to_string(rank) + ")",
                          context);
  if (!sizes.empty() && sizes.size() != static_cast<std::size_t>(comm.size()))
    throw InvalidArgument("sizes has " + std::to_string(sizes.size()) + " entries, expected one per rank (" +
                              std::to_string(comm.size()) + ")",
                          context);
}

/// The elements of `boxes` of `whole`, one box after another.
template <class Space, class T>
Buffer<T, Space> packed(typename Space::stream stream, const Box& whole, const std::vector<Box>& boxes,
                        Span<const T, Space> from) {
  auto to = buffer_on<T, Space>(stream, volume_of(boxes), uninitialized);
  pack_boxes(stream, Span<AnyElement, Space>(to.span()).bytes(), Span<const AnyElement, Space>(from).bytes(), whole,
             boxes, sizeof(T));
  return to;
}
template <class Space, class T>
void unpacked(typename Space::stream stream, Span<T, Space> to, const Box& whole, const std::vector<Box>& boxes,
              Span<const T, Space> from) {
  unpack_boxes(stream, Span<AnyElement, Space>(to).bytes(), whole, Span<const AnyElement, Space>(from).bytes(), boxes,
               sizeof(T));
}

}  // namespace detail

/// @name Collectives along a dimension
/// Each rank passes its own whole tensor, a `TensorRef` or a `Tensor` in the memory space of the communicator.
/// Collective over `comm`; ordered on `stream`, and on the host's memory blocking until the result is complete.
/// @param sizes  extents along the dimension, one per rank, equal on all ranks
/// @throws InvalidArgument for a dimension that the tensor does not have, or if `sizes` is not one per rank
/// @throws MismatchError, TimeoutError, RevokedError, RankFailure as the collectives do
/// @{

/// Returns the tensors of all ranks, concatenated along dimension `dim` in rank order.
///
/// All extents but that of `dim` are equal on all ranks; so is that of `dim`, unless `sizes` says otherwise.
template <Communicator C, detail::WholeTensor X>
[[nodiscard]] auto all_gather(C& comm, const X& x, std::size_t dim, calls::Counts sizes = {},
                              typename C::space::stream stream = {}, detail::here location = detail::here::current()) {
  using T = typename X::value_type;
  const auto part = detail::const_tensor_ref(x);
  detail::check_dimension(comm, "all_gather", dim, part.rank(), sizes, location);
  const auto each = detail::given_or_equal(sizes, part.extent(dim), comm.size());
  auto extents = part.extents();
  extents[dim] = detail::sum_of(each);
  const auto boxes = detail::slices(extents, dim, each);
  using Space = typename C::space;
  const std::size_t elements = volume(extents);
  Tensor<T, part.rank(), Space> whole(extents, detail::buffer_on<T, Space>(stream, elements, uninitialized));
  Buffer<T, Space> received;
  const bool direct = dim == 0;
  if (!direct) received = detail::buffer_on<T, Space>(stream, elements, uninitialized);
  const auto counts = detail::volumes_of(boxes);
  const auto target = direct ? whole.values() : received.span();
  const calls::Counts named = sizes.empty() ? calls::Counts{} : calls::Counts(counts);
  detail::make_in_order(comm, calls::AllGather<T, Space>{part.values(), target, named, location}, stream);
  if (!direct)
    detail::unpacked<Space>(stream, whole.values(), detail::whole_box(extents), boxes,
                            detail::as_const(received.span()));
  return whole;
}

/// Returns this rank's slice along dimension `dim` of the reduction of all ranks' tensors, which have equal extents.
///
/// The extent n of `dim` is partitioned evenly, rank i of p receiving [n*i/p, n*(i+1)/p), or into `sizes`.
template <Communicator C, detail::WholeTensor X, class Op>
[[nodiscard]] auto reduce_scatter(C& comm, const X& x, Op op, std::size_t dim, calls::Counts sizes = {},
                                  typename C::space::stream stream = {},
                                  detail::here location = detail::here::current()) {
  using T = typename X::value_type;
  const auto whole = detail::const_tensor_ref(x);
  detail::check_dimension(comm, "reduce_scatter", dim, whole.rank(), sizes, location);
  const auto each = detail::given_or_even(sizes, whole.extent(dim), comm.size());
  const auto boxes = detail::slices(whole.extents(), dim, each);
  const auto counts = detail::volumes_of(boxes);
  auto extents = whole.extents();
  extents[dim] = each[static_cast<std::size_t>(comm.rank())];
  using Space = typename C::space;
  Tensor<T, whole.rank(), Space> part(extents, detail::buffer_on<T, Space>(stream, volume(extents), uninitialized));
  Buffer<T, Space> sent;
  if (dim != 0) sent = detail::packed<Space>(stream, detail::whole_box(whole.extents()), boxes, whole.values());
  detail::make_in_order(comm,
                        calls::ReduceScatter<T, Op, Space>{dim == 0 ? whole.values() : detail::as_const(sent.span()),
                                                           part.values(), op, counts, location},
                        stream);
  return part;
}

/// Splits every rank's tensor along `split_dim` and returns this rank's slices, concatenated along `concat_dim` in rank
/// order: from a shard of `concat_dim` to a shard of `split_dim`.
///
/// `split_dim` is partitioned evenly. If the ranks' extents along `concat_dim` differ, `sizes` gives them.
template <Communicator C, detail::WholeTensor X>
[[nodiscard]] auto all_to_all(C& comm, const X& x, std::size_t split_dim, std::size_t concat_dim,
                              calls::Counts sizes = {}, typename C::space::stream stream = {},
                              detail::here location = detail::here::current()) {
  using T = typename X::value_type;
  const auto from = detail::const_tensor_ref(x);
  detail::check_dimension(comm, "all_to_all", std::max(split_dim, concat_dim), from.rank(), sizes, location);
  const auto split = detail::given_or_even({}, from.extent(split_dim), comm.size());
  const auto outs = detail::slices(from.extents(), split_dim, split);
  auto extents = from.extents();
  extents[split_dim] = split[static_cast<std::size_t>(comm.rank())];
  auto joined = detail::given_or_equal(sizes, from.extent(concat_dim), comm.size());
  if (split_dim == concat_dim)
    for (auto& size : joined)
      size = detail::given_or_even({}, size, comm.size())[static_cast<std::size_t>(comm.rank())];
  extents[concat_dim] = detail::sum_of(joined);
  const auto ins = detail::slices(extents, concat_dim, joined);
  using Space = typename C::space;
  const std::size_t elements = volume(extents);
  const auto sent = detail::packed<Space>(stream, detail::whole_box(from.extents()), outs, from.values());
  Tensor<T, from.rank(), Space> to(extents, detail::buffer_on<T, Space>(stream, elements, uninitialized));
  const auto received = detail::buffer_on<T, Space>(stream, elements, uninitialized);
  const auto out_counts = detail::volumes_of(outs), in_counts = detail::volumes_of(ins);
  detail::make_in_order(comm, calls::AllToAll<T, Space>{sent.span(), received.span(), out_counts, in_counts, location},
                        stream);
  detail::unpacked<Space>(stream, to.values(), detail::whole_box(extents), ins, detail::as_const(received.span()));
  return to;
}
/// @}

}  // namespace distx::inline DISTX_ABI
