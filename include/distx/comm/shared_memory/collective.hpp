// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/shared_memory/algorithms.hpp"

namespace distx::shared_memory {

/// While one lives, its rank touches other ranks' buffers.
class Busy {
 public:
  explicit Busy(Channel& channel) noexcept : channel_(channel) { channel.busy.store(1, std::memory_order_seq_cst); }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  ~Busy() { channel_.busy.store(0, std::memory_order_seq_cst); }

 private:
  Channel& channel_;
};

inline void compare(Arena& arena, Lane lane, int rank, std::size_t parity, const ErrorContext& context) {
  const Channel& mine = arena.control().channel(rank, lane);
  for (int other = 0; other < arena.size(); ++other) {
    const Channel& theirs = arena.control().channel(other, lane);
    if (theirs.summaries[parity].digest != mine.summaries[parity].digest)
      throw MismatchError(difference(mine.posts[parity].fingerprint, theirs.posts[parity].fingerprint, other), context);
  }
}

/// One rank's way through a collective; returns when every rank's part is done.
///
/// What is small is copied to the rank's slot, and whoever needs it takes it from there: all ranks arrive once, and
/// none touches another's buffer. The slots of two calls in a row differ.
template <Collective Call>
void run_collective(Arena& arena, Lane lane, const Call& call, const RankOf& self, Workspace& workspace) {
  const ErrorContext context = self.context(call);
  if (arena.revoked()) arena.throw_revoked(context);
  const std::size_t parity = workspace.calls % 2;
  Exchange<Call> x(arena, lane, call, self, workspace);
  x.publish();
  arena.arrive(lane, self.rank, context);
  std::size_t rounds = 0;
  compare(arena, lane, self.rank, parity, context);
  x.look();
  agree(x, context);
  if (x.all_inlined()) return work(x, 0);
  {
    const Busy busy(arena.control().channel(self.rank, lane));
    if (arena.revoked()) arena.throw_revoked(context);
    if (x.late()) {
      x.stage(0);
      arena.arrive(lane, self.rank, context);
    }
    rounds = x.rounds();
    for (std::size_t round = 0; round < rounds; ++round) {
      if (round > 0) {
        arena.arrive(lane, self.rank, context);
        if (x.has_results()) collect(x, round - 1);
      }
      work(x, round);
      if (round + 1 < rounds && x.shows()) x.stage(round + 1);
    }
  }
  arena.arrive(lane, self.rank, context);
  if (x.has_results() && rounds > 0) collect(x, rounds - 1);
}

}  // namespace distx::shared_memory
