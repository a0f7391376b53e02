// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>

#include "distx/comm/movement.hpp"
#include "distx/comm/reductions.hpp"
#include "distx/memory/operations.hpp"

// Blocking collectives on a few host values (norms, counts) over a communicator of any memory space.
namespace distx::detail {

/// Returns communicator workspace for host values, valid until the next of these calls.
template <class T, Communicator C>
[[nodiscard]] Span<T, typename C::space> staged(C& comm, std::size_t size) {
  const auto bytes = comm.scratch(std::max<std::size_t>(1, size) * sizeof(T));
  return {reinterpret_cast<T*>(bytes.data()), size};
}

/// Reduces `values` across all ranks, in place on every rank.
template <Communicator C, class T, class Op>
void all_reduce_values(C& comm, Span<T> values, Op op, const std::source_location& location) {
  using Space = typename C::space;
  if constexpr (HostAccessible<Space>) {
    all_reduce(comm, Span<T, Space>(values.data(), values.size()), op, location);
  } else {
    const typename Space::stream stream{};
    const auto there = staged<T>(comm, values.size());
    copy(stream, there, Span<const T>(values));
    stream.synchronize();  // a communicator may order its blocking calls after another stream
    all_reduce(comm, there, op, location);
    copy(stream, values, Span<const T, Space>(there));
    stream.synchronize();
  }
}

/// Gathers all ranks' `mine` in rank order into `all`, on every rank.
/// @pre all.size() == mine.size() * comm.size()
template <Communicator C, class T>
void all_gather_values(C& comm, Span<const std::type_identity_t<T>> mine, Span<T> all,
                       const std::source_location& location) {
  using Space = typename C::space;
  if constexpr (HostAccessible<Space>) {
    all_gather(comm, Span<const T, Space>(mine.data(), mine.size()), Span<T, Space>(all.data(), all.size()), {},
               location);
  } else {
    const typename Space::stream stream{};
    const auto there = staged<T>(comm, all.size());
    const auto own = there.subspan(static_cast<std::size_t>(comm.rank()) * mine.size(), mine.size());
    copy(stream, own, mine);
    stream.synchronize();
    all_gather(comm, Span<const T, Space>(own), there, {}, location);
    copy(stream, all, Span<const T, Space>(there));
    stream.synchronize();
  }
}

}  // namespace distx::detail
