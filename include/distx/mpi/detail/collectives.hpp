// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstring>

#include "distx/mpi/detail/job.hpp"

// Functions that pass a call to MPI, in pieces if it exceeds the limit of one MPI call.
namespace distx::inline DISTX_ABI::detail::mpi {

/// The partition of the elements among ranks, in units: equal blocks in rank order, or blocks of given counts.
struct Blocks {
  calls::Counts counts{};
  std::size_t equal = 0;
  std::size_t per_element = 1;

  [[nodiscard]] std::size_t offset(int rank) const noexcept {
    return calls::block_offset(counts, equal, rank) * per_element;
  }
  [[nodiscard]] std::size_t count(int rank) const noexcept {
    return calls::block_count(counts, equal, rank) * per_element;
  }
  /// Returns a rank's block of a span of all elements.
  template <class Any>
  [[nodiscard]] Span<Any> of(const Span<Any>& whole, int rank) const noexcept {
    return whole.subspan(calls::block_offset(counts, equal, rank), calls::block_count(counts, equal, rank));
  }
  /// Writes sizes and offsets as MPI's arguments. @pre the sum of the counts fits an `int`
  void write(std::vector<int>& sizes, std::vector<int>& places, int ranks) const {
    sizes.clear();
    places.clear();
    for (int rank = 0; rank < ranks; ++rank) {
      sizes.push_back(static_cast<int>(count(rank)));
      places.push_back(static_cast<int>(offset(rank)));
    }
  }
};

/// Issues an all-reduce that MPI cannot make of the operands as they are, or not in one call.
inline void issue_prepared(Job& job, const Call<Host>& c) {
  const Operands o = job.reduction(c.op, c.send, c.receive);
  in_pieces(c.send.size(), job.most, [&](std::size_t offset, int count) {
    job.call("MPI_Allreduce", MPI_Allreduce, MPI_Iallreduce, o.send_at(offset), o.receive_at(offset), count, o.type,
             o.op);
  });
}
inline void issue_all_reduce(Job& job, const Call<Host>& c) {
  const auto type = c.send.type();
  const bool plain = !c.op.finishes() && is_native(c.op.kind(), type) && !is_narrow_float(type);
  if (!plain || c.send.size() > job.most) [[unlikely]]
    return issue_prepared(job, c);
  // A direct path for the common case, because the overhead of the general one is measurable for small messages.
  const void* const send = c.send.data() == c.receive.data() ? MPI_IN_PLACE : c.send.data();
  job.call("MPI_Allreduce", MPI_Allreduce, MPI_Iallreduce, send, c.receive.data(), static_cast<int>(c.send.size()),
           datatype_of(type), op_of(c.op.kind()));
}

inline void issue_reduce(Job& job, const Call<Host>& c) {
  const bool receives = job.self.rank == c.root;
  const Operands o = job.reduction(c.op, c.send, receives ? c.receive : Span<AnyElement>());
  in_pieces(c.send.size(), job.most, [&](std::size_t offset, int count) {
    job.call("MPI_Reduce", MPI_Reduce, MPI_Ireduce, o.send_at(offset), o.receive_at(offset), count, o.type, o.op,
             c.root);
  });
}

inline void issue_reduce_scatter(Job& job, const Call<Host>& c) {
  const std::size_t total = c.send.size();
  const Blocks blocks{c.counts, c.receive.size()};
  // MPI's in-place form expects the operands in `receive` and writes the result to its beginning, unlike this call.
  const Operands o = job.reduction(c.op, c.send, c.receive, true);
  if (total > job.most) {
    for (int rank = 0; rank < job.self.size; ++rank)
      in_pieces(blocks.count(rank), job.most, [&](std::size_t offset, int count) {
        job.call("MPI_Reduce", MPI_Reduce, MPI_Ireduce, o.send_at(blocks.offset(rank) + offset),
                 rank == job.self.rank ? o.receive_at(offset) : nullptr, count, o.type, o.op, rank);
      });
  } else if (c.counts.empty()) {
    job.call("MPI_Reduce_scatter_block", MPI_Reduce_scatter_block, MPI_Ireduce_scatter_block, o.send, o.receive,
             static_cast<int>(c.receive.size()), o.type, o.op);
  } else {
    blocks.write(job.counts, job.places, job.self.size);
    job.call("MPI_Reduce_scatter", MPI_Reduce_scatter, MPI_Ireduce_scatter, o.send, o.receive, job.counts.data(),
             o.type, o.op);
  }
}

/// Sends `out(rank)` to every rank and receives `in(rank)`, of any size. Empty blocks are not sent.
///
/// Used if MPI's collective would require that all ranks know of blocks above MPI's limit, or that all blocks are
/// equal.
template <class Out, class In>
void exchange(Job& job, Out&& out, In&& in) {
  const int own = job.self.rank;
  const int ranks = job.self.size;
  for (int step = 1; step < ranks; ++step) {
    const int from = (own + ranks - step) % ranks;
    if (const Span<AnyElement> block = in(from); !block.empty()) job.receive(block, 0, from);
  }
  for (int step = 1; step < ranks; ++step) {
    const int to = (own + step) % ranks;
    if (const Span<const AnyElement> block = out(to); !block.empty()) job.send(block, 0, to);
  }
  const Span<const AnyElement> kept = out(own);
  const Span<AnyElement> place = in(own);
  if (!place.empty() && place.data() != kept.data()) std::memcpy(place.data(), kept.data(), place.size_bytes());
}

inline void issue_broadcast(Job& job, const Call<Host>& c) {
  const Unit unit = unit_of(c.receive);
  in_pieces(c.receive.size() * unit.per_element, job.most, [&](std::size_t offset, int count) {
    job.call("MPI_Bcast", MPI_Bcast, MPI_Ibcast, c.receive.bytes() + offset * unit.bytes, count, unit.type, c.root);
  });
}

inline void issue_all_gather(Job& job, const Call<Host>& c) {
  const Unit unit = unit_of(c.receive);
  const Blocks blocks{c.counts, c.send.size(), unit.per_element};
  const std::size_t mine = c.send.size() * unit.per_element;
  const bool in_place = c.send.data() == c.receive.bytes() + blocks.offset(job.self.rank) * unit.bytes;
  const void* const send = in_place ? MPI_IN_PLACE : c.send.data();
  if (c.receive.size() * unit.per_element > job.most) {
    exchange(job, [&](int) { return c.send; }, [&](int rank) { return blocks.of(c.receive, rank); });
  } else if (c.counts.empty()) {
    job.call("MPI_Allgather", MPI_Allgather, MPI_Iallgather, send, static_cast<int>(mine), unit.type, c.receive.data(),
             static_cast<int>(mine), unit.type);
  } else {
    blocks.write(job.counts, job.places, job.self.size);
    job.call("MPI_Allgatherv", MPI_Allgatherv, MPI_Iallgatherv, send, static_cast<int>(mine), unit.type,
             c.receive.data(), job.counts.data(), job.places.data(), unit.type);
  }
}

inline void issue_all_to_all(Job& job, const Call<Host>& c) {
  const Unit unit = unit_of(c.receive);
  const bool in_place = c.send.data() == c.receive.data() && !c.send.empty();
  const auto equal = c.send.size() / static_cast<std::size_t>(job.self.size);
  if (c.counts.empty() && c.send.size() * unit.per_element <= job.most) {
    const auto count = static_cast<int>(equal * unit.per_element);
    const void* const send = in_place ? MPI_IN_PLACE : c.send.data();
    job.call("MPI_Alltoall", MPI_Alltoall, MPI_Ialltoall, send, count, unit.type, c.receive.data(), count, unit.type);
    return;
  }
  Span<const AnyElement> send = c.send;
  if (in_place) {
    std::byte* const copy = job.scratch(c.send.size_bytes());
    std::memcpy(copy, c.send.data(), c.send.size_bytes());
    send = {copy, c.send.size(), c.send.type(), c.send.element_bytes()};
  }
  const Blocks sent{c.counts, equal}, received{c.receive_counts, equal};
  exchange(job, [&](int rank) { return sent.of(send, rank); }, [&](int rank) { return received.of(c.receive, rank); });
}

// Only the root knows whether the blocks are equal, so the other ranks could not choose between MPI_Gather and
// MPI_Gatherv; the latter is a message from each rank anyway.
inline void issue_gather(Job& job, const Call<Host>& c) {
  const Blocks blocks{c.counts, c.send.size()};
  exchange(
      job, [&](int rank) { return rank == c.root ? c.send : Span<const AnyElement>(); },
      [&](int rank) { return job.self.rank == c.root ? blocks.of(c.receive, rank) : Span<AnyElement>(); });
}

inline void issue_scatter(Job& job, const Call<Host>& c) {
  const Blocks blocks{c.counts, c.receive.size()};
  exchange(
      job, [&](int rank) { return job.self.rank == c.root ? blocks.of(c.send, rank) : Span<const AnyElement>(); },
      [&](int rank) { return rank == c.root ? c.receive : Span<AnyElement>(); });
}

/// Passes a call to MPI. A message between two ranks is one MPI message if it is small, and two otherwise: see
/// Job::send. Inlined, also in a debugger: a walk from the caller to MPI passes no frame for a choice.
[[gnu::always_inline]] inline void issue(Job& job, const Call<Host>& c) {
  switch (c.kind) {
    case CollectiveKind::all_reduce:
      return issue_all_reduce(job, c);
    case CollectiveKind::reduce:
      return issue_reduce(job, c);
    case CollectiveKind::broadcast:
      return issue_broadcast(job, c);
    case CollectiveKind::all_gather:
      return issue_all_gather(job, c);
    case CollectiveKind::reduce_scatter:
      return issue_reduce_scatter(job, c);
    case CollectiveKind::all_to_all:
      return issue_all_to_all(job, c);
    case CollectiveKind::gather:
      return issue_gather(job, c);
    case CollectiveKind::scatter:
      return issue_scatter(job, c);
    case CollectiveKind::send:
      return job.send(c.send, c.lengths, c.to);
    case CollectiveKind::receive:
      return job.receive(c.receive, c.lengths, c.from);
    case CollectiveKind::send_receive:
      job.receive(c.receive, 0, c.from);
      return job.send(c.send, 0, c.to);
    case CollectiveKind::barrier:
      return job.call("MPI_Barrier", MPI_Barrier, MPI_Ibarrier);
  }
}

}  // namespace distx::inline DISTX_ABI::detail::mpi
