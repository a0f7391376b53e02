// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>

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
    job.check(job.call(MPI_Allreduce, MPI_Iallreduce, o.send_at(offset), o.receive_at(offset), count, o.type, o.op),
              "MPI_Allreduce", c);
  });
}
inline void issue_all_reduce(Job& job, const Call<Host>& c) {
  const auto type = c.send.type();
  const bool plain = !c.op.finishes() && is_native(c.op.kind(), type) && !is_narrow_float(type);
  if (!plain || c.send.size() > job.most) [[unlikely]]
    return issue_prepared(job, c);
  // A direct path for the common case, because the overhead of the general one is measurable for small messages.
  const void* const send = c.send.data() == c.receive.data() ? MPI_IN_PLACE : c.send.data();
  job.check(job.call(MPI_Allreduce, MPI_Iallreduce, send, c.receive.data(), static_cast<int>(c.send.size()),
                     datatype_of(type), op_of(c.op.kind())),
            "MPI_Allreduce", c);
}

inline void issue_reduce(Job& job, const Call<Host>& c) {
  const bool receives = job.self.rank == c.root;
  const Operands o = job.reduction(c.op, c.send, receives ? c.receive : Span<AnyElement>());
  in_pieces(c.send.size(), job.most, [&](std::size_t offset, int count) {
    job.check(job.call(MPI_Reduce, MPI_Ireduce, o.send_at(offset), o.receive_at(offset), count, o.type, o.op, c.root),
              "MPI_Reduce", c);
  });
}

inline void issue_reduce_scatter(Job& job, const Call<Host>& c) {
  const std::size_t total = c.send.size();
  const Blocks blocks{c.counts, c.receive.size()};
  const bool wide = is_narrow_float(c.send.type());
  const bool overlap = c.receive.data() == c.send.bytes() + blocks.offset(job.self.rank) * c.send.element_bytes();
  Operands o{c.send.data(), c.receive.data(), datatype_of(c.send.type()), MPI_OP_NULL, c.send.element_bytes()};
  if (wide) {
    float* const sums = job.floats(total + c.receive.size());
    detail::widen(c.send, sums);
    o = {sums, sums + total, MPI_FLOAT, MPI_OP_NULL, sizeof(float)};
  } else if (overlap) {
    // MPI's in-place form expects the operands in `receive` and writes the result to its beginning, unlike this call.
    o.receive = job.scratch(c.receive.size_bytes());
  }
  job.reduce_by(c.op, wide, o);
  job.finish_with(c.op, wide, o.receive, c.receive);
  if (total > job.most) {
    for (int rank = 0; rank < job.self.size; ++rank)
      in_pieces(blocks.count(rank), job.most, [&](std::size_t offset, int count) {
        job.check(job.call(MPI_Reduce, MPI_Ireduce, o.send_at(blocks.offset(rank) + offset),
                           rank == job.self.rank ? o.receive_at(offset) : nullptr, count, o.type, o.op, rank),
                  "MPI_Reduce", c);
      });
  } else if (c.counts.empty()) {
    job.check(job.call(MPI_Reduce_scatter_block, MPI_Ireduce_scatter_block, o.send, o.receive,
                       static_cast<int>(c.receive.size()), o.type, o.op),
              "MPI_Reduce_scatter_block", c);
  } else {
    blocks.write(job.counts, job.places, job.self.size);
    job.check(job.call(MPI_Reduce_scatter, MPI_Ireduce_scatter, o.send, o.receive, job.counts.data(), o.type, o.op),
              "MPI_Reduce_scatter", c);
  }
}

}  // namespace distx::inline DISTX_ABI::detail::mpi
