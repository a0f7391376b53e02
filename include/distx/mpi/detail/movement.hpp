// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/mpi/detail/reductions.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// Sends `out(rank)` to every rank and receives `in(rank)`, of any size; see `in_message_pieces`. Empty blocks are not
/// sent.
///
/// Used if MPI's collective would require that all ranks know of blocks above MPI's limit, or that all blocks are
/// equal.
template <class Out, class In>
void exchange(Job& job, const Call<Host>& c, Out&& out, In&& in) {
  const int own = job.self.rank;
  const int ranks = job.self.size;
  for (int step = 1; step < ranks; ++step) {
    const int from = (own + ranks - step) % ranks;
    job.receive(job.self.context(c), in(from), from, job.tag());
  }
  for (int step = 1; step < ranks; ++step) {
    const int to = (own + step) % ranks;
    job.send(c, out(to), to, job.tag());
  }
  const Span<const AnyElement> kept = out(own);
  const Span<AnyElement> place = in(own);
  if (!place.empty() && place.data() != kept.data()) std::memcpy(place.data(), kept.data(), place.size_bytes());
}

inline void issue_broadcast(Job& job, const Call<Host>& c) {
  const Unit unit = unit_of(c.receive);
  in_pieces(c.receive.size() * unit.per_element, job.most, [&](std::size_t offset, int count) {
    job.check(job.call(MPI_Bcast, MPI_Ibcast, c.receive.bytes() + offset * unit.bytes, count, unit.type, c.root),
              "MPI_Bcast", c);
  });
}

inline void issue_all_gather(Job& job, const Call<Host>& c) {
  const Unit unit = unit_of(c.receive);
  const Blocks blocks{c.counts, c.send.size(), unit.per_element};
  const std::size_t mine = c.send.size() * unit.per_element;
  const bool in_place = c.send.data() == c.receive.bytes() + blocks.offset(job.self.rank) * unit.bytes;
  const void* const send = in_place ? MPI_IN_PLACE : c.send.data();
  if (c.receive.size() * unit.per_element > job.most) {
    exchange(job, c, [&](int) { return c.send; }, [&](int rank) { return blocks.of(c.receive, rank); });
  } else if (c.counts.empty()) {
    job.check(job.call(MPI_Allgather, MPI_Iallgather, send, static_cast<int>(mine), unit.type, c.receive.data(),
                       static_cast<int>(mine), unit.type),
              "MPI_Allgather", c);
  } else {
    blocks.write(job.counts, job.places, job.self.size);
    job.check(job.call(MPI_Allgatherv, MPI_Iallgatherv, send, static_cast<int>(mine), unit.type, c.receive.data(),
                       job.counts.data(), job.places.data(), unit.type),
              "MPI_Allgatherv", c);
  }
}

inline void issue_all_to_all(Job& job, const Call<Host>& c) {
  const Unit unit = unit_of(c.receive);
  const bool in_place = c.send.data() == c.receive.data() && !c.send.empty();
  const auto equal = c.send.size() / static_cast<std::size_t>(job.self.size);
  if (c.counts.empty() && c.send.size() * unit.per_element <= job.most) {
    const auto count = static_cast<int>(equal * unit.per_element);
    const void* const send = in_place ? MPI_IN_PLACE : c.send.data();
    job.check(job.call(MPI_Alltoall, MPI_Ialltoall, send, count, unit.type, c.receive.data(), count, unit.type),
              "MPI_Alltoall", c);
    return;
  }
  Span<const AnyElement> send = c.send;
  if (in_place) {
    std::byte* const copy = job.scratch(c.send.size_bytes());
    std::memcpy(copy, c.send.data(), c.send.size_bytes());
    send = {copy, c.send.size(), c.send.type(), c.send.element_bytes()};
  }
  const Blocks sent{c.counts, equal}, received{c.receive_counts, equal};
  exchange(
      job, c, [&](int rank) { return sent.of(send, rank); }, [&](int rank) { return received.of(c.receive, rank); });
}

// Only the root knows whether the blocks are equal, so the other ranks could not choose between MPI_Gather and
// MPI_Gatherv; the latter is a message from each rank anyway.
inline void issue_gather(Job& job, const Call<Host>& c) {
  const Blocks blocks{c.counts, c.send.size()};
  exchange(
      job, c, [&](int rank) { return rank == c.root ? c.send : Span<const AnyElement>(); },
      [&](int rank) { return job.self.rank == c.root ? blocks.of(c.receive, rank) : Span<AnyElement>(); });
}

inline void issue_scatter(Job& job, const Call<Host>& c) {
  const Blocks blocks{c.counts, c.receive.size()};
  exchange(
      job, c, [&](int rank) { return job.self.rank == c.root ? blocks.of(c.send, rank) : Span<const AnyElement>(); },
      [&](int rank) { return rank == c.root ? c.receive : Span<AnyElement>(); });
}

inline void issue_barrier(Job& job, const Call<Host>& c) {
  job.check(job.call(MPI_Barrier, MPI_Ibarrier), "MPI_Barrier", c);
}

}  // namespace distx::inline DISTX_ABI::detail::mpi
