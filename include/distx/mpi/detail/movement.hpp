// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/mpi/detail/reductions.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// Contiguous units that are sent to, or received from, one rank.
template <class Pointer>
struct Piece {
  Pointer data = nullptr;
  std::size_t units = 0;
};

/// Sends `out(rank)` to every rank and receives `in(rank)`, of any size; sizes are compared, empty blocks are not sent.
///
/// Used if MPI's collective would require that all ranks know of blocks above MPI's limit, or that all blocks are
/// equal.
template <class Out, class In>
void exchange(Job& job, const Call<Host>& c, const Unit& unit, Out&& out, In&& in) {
  const int own = job.self.rank;
  const int ranks = job.self.size;
  for (int step = 1; step < ranks; ++step) {
    const int from = (own + ranks - step) % ranks;
    const Piece<std::byte*> piece = in(from);
    if (piece.units > 0) job.receive(job.self.context(c), unit, piece.data, piece.units, from, job.tag());
  }
  for (int step = 1; step < ranks; ++step) {
    const int to = (own + step) % ranks;
    const Piece<const std::byte*> piece = out(to);
    if (piece.units > 0) job.send(c, unit, piece.data, piece.units, to, job.tag());
  }
  const Piece<const std::byte*> kept = out(own);
  const Piece<std::byte*> place = in(own);
  if (place.units > 0 && place.data != kept.data) std::memcpy(place.data, kept.data, place.units * unit.bytes);
}

/// Returns block `rank` of a span.
template <class Pointer>
[[nodiscard]] Piece<Pointer> block(Pointer data, const Blocks& blocks, const Unit& unit, int rank) noexcept {
  return {data + blocks.offset(rank) * unit.bytes, blocks.count(rank)};
}

inline void issue_broadcast(Job& job, const Call<Host>& c) {
  const Unit unit = unit_of(c.receive);
  in_pieces(c.receive.size() * unit.per_element, job.most, [&](std::size_t offset, int count) {
    job.check(job.call(MPI_Bcast, MPI_Ibcast, static_cast<void*>(c.receive.bytes() + offset * unit.bytes), count,
                       unit.type, c.root),
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
    exchange(
        job, c, unit, [&](int) { return Piece<const std::byte*>{c.send.bytes(), mine}; },
        [&](int rank) { return block(c.receive.bytes(), blocks, unit, rank); });
  } else if (c.counts.empty()) {
    job.check(job.call(MPI_Allgather, MPI_Iallgather, send, static_cast<int>(mine), unit.type, c.receive.data(),
                       static_cast<int>(mine), unit.type),
              "MPI_Allgather", c);
  } else {
    blocks.write(job.counts[0], job.places[0], job.self.size);
    job.check(job.call(MPI_Allgatherv, MPI_Iallgatherv, send, static_cast<int>(mine), unit.type, c.receive.data(),
                       static_cast<const int*>(job.counts[0].data()), static_cast<const int*>(job.places[0].data()),
                       unit.type),
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
  const std::byte* send = c.send.bytes();
  if (in_place) {
    std::byte* const copy = job.scratch(c.send.size_bytes());
    std::memcpy(copy, send, c.send.size_bytes());
    send = copy;
  }
  const Blocks sent{c.counts, equal, unit.per_element};
  const Blocks received{c.receive_counts, equal, unit.per_element};
  exchange(
      job, c, unit, [&](int rank) { return block(send, sent, unit, rank); },
      [&](int rank) { return block(c.receive.bytes(), received, unit, rank); });
}

// Only the root knows whether the blocks are equal, so the other ranks could not choose between MPI_Gather and
// MPI_Gatherv; the latter is a message from each rank anyway.
inline void issue_gather(Job& job, const Call<Host>& c) {
  const Unit unit = unit_of(c.send);
  const Blocks blocks{c.counts, c.send.size(), unit.per_element};
  const bool at_root = job.self.rank == c.root;
  exchange(
      job, c, unit,
      [&](int rank) {
        return rank == c.root ? Piece<const std::byte*>{c.send.bytes(), c.send.size() * unit.per_element}
                              : Piece<const std::byte*>{};
      },
      [&](int rank) { return at_root ? block(c.receive.bytes(), blocks, unit, rank) : Piece<std::byte*>{}; });
}

inline void issue_scatter(Job& job, const Call<Host>& c) {
  const Unit unit = unit_of(c.receive);
  const Blocks blocks{c.counts, c.receive.size(), unit.per_element};
  const bool at_root = job.self.rank == c.root;
  exchange(
      job, c, unit,
      [&](int rank) { return at_root ? block(c.send.bytes(), blocks, unit, rank) : Piece<const std::byte*>{}; },
      [&](int rank) {
        return rank == c.root ? Piece<std::byte*>{c.receive.bytes(), c.receive.size() * unit.per_element}
                              : Piece<std::byte*>{};
      });
}

inline void issue_barrier(Job& job, const Call<Host>& c) {
  job.check(job.call(MPI_Barrier, MPI_Ibarrier), "MPI_Barrier", c);
}

}  // namespace distx::inline DISTX_ABI::detail::mpi
