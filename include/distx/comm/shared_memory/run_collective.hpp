// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/shared_memory/algorithms.hpp"

namespace distx::detail::shared_memory {

/// Marks this rank as accessing other ranks' buffers for the duration of a scope.
class AccessGuard {
 public:
  explicit AccessGuard(CallSlot& slot) noexcept : slot_(slot) { slot.busy.store(1, std::memory_order_seq_cst); }
  AccessGuard(const AccessGuard&) = delete;
  AccessGuard& operator=(const AccessGuard&) = delete;
  ~AccessGuard() { slot_.busy.store(0, std::memory_order_seq_cst); }

 private:
  CallSlot& slot_;
};

/// Compares the ranks' calls. @throws MismatchError if they differ
inline void check_consistency(SharedRegion& region, CallQueue queue, int rank, std::size_t parity,
                              const ErrorContext& context) {
  const CallSlot& mine = region.control().channel(rank, queue);
  for (int other = 0; other < region.size(); ++other) {
    const CallSlot& theirs = region.control().channel(other, queue);
    if (theirs.inlines[parity].digest != mine.inlines[parity].digest)
      throw MismatchError(difference(mine.posts[parity].fingerprint, theirs.posts[parity].fingerprint, other), context);
  }
}

/// Runs one rank's side of a collective; returns when every rank's part is done.
///
/// Small operands are copied to the rank's slot, and each rank reads the slots that it needs: ranks synchronize once,
/// and no rank accesses another rank's buffer. Successive calls use different slots.
template <calls::Collective Call>
void run_collective(SharedRegion& region, CallQueue queue, const Call& call, const calls::RankOf& self,
                    CallWorkspace& workspace) {
  const ErrorContext context = self.context(call);
  if (region.revoked()) region.throw_revoked(context);
  const std::size_t parity = workspace.calls % 2;
  CollectiveExecution<Call> x(region, queue, call, self, workspace);
  x.publish();
  region.arrive(queue, self.rank, context);
  check_consistency(region, queue, self.rank, parity, context);
  x.look();
  detail::check_blocks(call, workspace.seen, context);
  if (x.all_inlined()) return detail::complete_inlined(call, self, workspace.seen, workspace.sources);
  std::size_t rounds = 0;
  {
    const AccessGuard guard(region.control().channel(self.rank, queue));
    if (region.revoked()) region.throw_revoked(context);
    if (x.late()) {
      x.staging(0);
      region.arrive(queue, self.rank, context);
    }
    rounds = x.rounds();
    for (std::size_t round = 0; round < rounds; ++round) {
      if (round > 0) {
        region.arrive(queue, self.rank, context);
        if (x.has_results()) collect(x, round - 1);
      }
      run_round(x, round);
      if (round + 1 < rounds && x.shows()) x.staging(round + 1);
    }
  }
  region.arrive(queue, self.rank, context);
  if (x.has_results() && rounds > 0) collect(x, rounds - 1);
}

}  // namespace distx::detail::shared_memory
