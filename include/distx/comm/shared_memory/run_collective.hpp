// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/shared_memory/algorithms.hpp"

namespace distx::inline DISTX_ABI::detail::shared_memory {

/// Compares this rank's calls up to `call` with those of another rank that has made it, if both still publish it: of
/// two ranks, the one that is ahead finds the other's.
/// @param latest  the call that this rank is in
/// @throws MismatchError if they differ
inline void check_consistency(SharedRegion& region, CallQueue queue, int rank, int other, std::uint64_t call,
                              std::uint64_t latest, const ErrorContext& context) {
  const auto of = [&](int r, std::uint64_t number) -> const PublishedCall& {
    return region.control().published(r, queue, number);
  };
  const auto differs = [&](std::uint64_t number) {
    const CallLine& theirs = of(other, number).line;
    const auto published = [&] { return theirs.step.load(std::memory_order_acquire) == step_of(number, 0); };
    if (!published()) return false;
    const std::uint64_t history = theirs.history.load(std::memory_order_acquire);
    return history != of(rank, number).line.history.load(std::memory_order_relaxed) && published();
  };
  if (!differs(call)) return;
  // The first call that differs, among those that are still published.
  const std::uint64_t ring = region.control().ring();
  std::uint64_t first = call > ring ? call - ring + 1 : 1;
  while (first < call && !differs(first)) ++first;
  const PublishedCall& mine = of(rank, first);
  std::string words = difference(mine.rest.fingerprint, of(other, first).rest.fingerprint, other);
  if (mine.rest.fingerprint == of(other, first).rest.fingerprint)
    words = "an earlier call of rank " + std::to_string(other) + " differs from this rank's";
  else if (first != latest)
    words = "in the " + name_and_label(mine.rest.fingerprint) + " called in line " + std::to_string(mine.rest.line) +
            ", " + words;
  throw MismatchError(words, context);
}

/// Waits until the memory that call `number` is published in is free: every rank has completed the call that was there
/// before. A rank that had to wait may publish several calls, and compares them: it may never wait for data.
inline void await_reuse(SharedRegion& region, CallQueue queue, int rank, std::uint64_t number, CallWorkspace& workspace,
                        const ErrorContext& context) {
  const std::uint64_t ring = region.control().ring();
  if (number <= ring || workspace.finished >= number - ring) return;
  const std::uint64_t entered = number - ring / 2;
  region.await(queue, rank, step_of(entered, 0), context);
  workspace.finished = entered - 1;
  for (int other = 0; other < region.size(); ++other)
    if (other != rank) check_consistency(region, queue, rank, other, entered, number, context);
}

/// Runs one side of a collective of several ranks; returns when this rank's part is done.
///
/// Small operands are copied to the rank's slot, and each rank reads the slots that it needs: ranks synchronize once,
/// and no rank accesses another rank's buffer. Successive calls use different slots. A rank waits only for those whose
/// operands it reads, so the root of a small broadcast may be some calls ahead of the others. Each published call
/// carries a hash of all calls of its rank, so ranks that wait for each other later find an earlier difference.
inline void run_among_ranks(SharedRegion& region, CallQueue queue, const Call<Host>& call, const RankOf& self,
                            CallWorkspace& workspace) {
  const ErrorContext context = self.context(call);
  CollectiveExecution x(region, queue, call, self, workspace);
  const std::uint64_t number = x.number();
  await_reuse(region, queue, self.rank, number, workspace, context);
  x.publish();
  std::uint64_t step = step_of(number, 0);
  const auto check = [&](int other) {
    if (x.line_of(other).history.load(std::memory_order_acquire) != workspace.history) [[unlikely]]
      check_consistency(region, queue, self.rank, other, number, number, context);
  };
  if (region.control().has_tree()) {
    region.arrive(queue, self.rank, step, context);
  } else {
    region.take_step(queue, self.rank, step);
    const auto published = [&](int other) { return x.line_of(other).step.load(std::memory_order_acquire) >= step; };
    if (x.is_done()) return x.take_from_root(context);
    x.take_next_lines();
    if (x.traits.root_sends && region.control().has_ranks_ahead() && self.rank != call.root) {
      const bool behind =
          region.await(queue, self.rank, step, context, [&](int r) { return r == call.root; }, published);
      if (behind) x.prefetch_next(call.root);
      check(call.root);
      if (x.look_at_root()) return x.take_from_root(context);
    }
    const bool behind = region.await(queue, self.rank, step, context, AllRanks{}, published);
    if (x.traits.rooted && behind)
      for (int other = 0; other < self.size; ++other)
        if (other != self.rank) x.prefetch_next(other);
  }
  for (int other = 0; other < self.size; ++other) check(other);
  workspace.finished = number - 1;
  x.look();
  if (x.traits.exchanges_counts) check_blocks(call, workspace.seen, context);
  if (x.all_inlined()) return complete_inlined(call, self, workspace.seen, workspace.sources);
  const auto arrive = [&] {
    region.arrive(queue, self.rank, ++step, context, [&](int r) { return x.joins_rounds(r); });
  };
  std::size_t rounds = 0;
  {
    const AccessGuard guard(region.control().channel(self.rank, queue).busy);
    if (region.revoked()) region.throw_revoked(context);
    if (x.late()) {
      x.staging(0);
      arrive();
    }
    rounds = x.rounds();
    for (std::size_t round = 0; round < rounds; ++round) {
      if (round > 0) {
        arrive();
        if (x.has_results()) collect(x, round - 1);
      }
      run_round(x, round);
      if (round + 1 < rounds && x.shows()) x.staging(round + 1);
    }
  }
  arrive();
  if (x.has_results() && rounds > 0) collect(x, rounds - 1);
}

/// Runs one rank's side of a collective.
inline void run_collective(SharedRegion& region, CallQueue queue, const Call<Host>& call, const RankOf& self,
                           CallWorkspace& workspace) {
  if (region.revoked()) [[unlikely]]
    region.throw_revoked(self.context(call));
  if (self.size == 1) return complete_alone(call);
  run_among_ranks(region, queue, call, self, workspace);
}

}  // namespace distx::inline DISTX_ABI::detail::shared_memory
