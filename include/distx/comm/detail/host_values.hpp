// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <memory>

#include "distx/comm/movement.hpp"
#include "distx/comm/reductions.hpp"
#include "distx/memory/detail/host_copies.hpp"

// Blocking collectives on a few host values (norms, counts) over a communicator of any memory space.
namespace distx::inline DISTX_ABI::detail {

/// Returns communicator workspace for host values, valid until the next of these calls.
template <class T, Communicator C>
[[nodiscard]] Span<T, typename C::space> staged(C& comm, std::size_t size) {
  const auto bytes = comm.scratch(std::max<std::size_t>(1, size) * sizeof(T));
  return {reinterpret_cast<T*>(bytes.data()), size};
}

template <class T, MemorySpace Space>
[[nodiscard]] auto as_bytes(Span<T, Space> span) noexcept {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return Span<Byte, Space>(reinterpret_cast<Byte*>(span.data()), span.size_bytes());
}

/// Returns the communicator's copies between its scratch memory and the host: kept, if it has a place for them.
template <Communicator C>
[[nodiscard]] auto host_copies(C& comm) {
  if constexpr (requires { comm.host_copies(); })
    return &comm.host_copies();
  else
    return std::make_unique<HostCopies<typename C::space>>();
}

/// Reduces `values` across all ranks, in place on every rank.
template <Communicator C, class T, class Op>
void all_reduce_values(C& comm, Span<T> values, Op op, const std::source_location& location) {
  using Space = typename C::space;
  if constexpr (HostAccessible<Space>) {
    all_reduce(comm, Span<T, Space>(values.data(), values.size()), op, location);
  } else {
    const auto there = staged<T>(comm, values.size());
    const auto copies = host_copies(comm);
    copies->write(as_bytes(there), as_bytes(values));
    all_reduce(comm, there, op, location);
    copies->read(as_bytes(values), as_bytes(there));
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
    const auto there = staged<T>(comm, all.size());
    const auto own = there.subspan(static_cast<std::size_t>(comm.rank()) * mine.size(), mine.size());
    const auto copies = host_copies(comm);
    copies->write(as_bytes(own), as_bytes(mine));
    all_gather(comm, Span<const T, Space>(own), there, {}, location);
    copies->read(as_bytes(all), as_bytes(there));
  }
}

}  // namespace distx::inline DISTX_ABI::detail
