// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <deque>

#include "distx/parallel/detail/bucket/bucket.hpp"
#include "distx/parallel/detail/engine/training_policies.hpp"

namespace distx::detail {

template <MemorySpace Space>
using Buckets = std::deque<Bucket<Space>>;

/// Reduces a step's gradients, bucket by bucket in the order of the buckets, whatever the order in which they fill.
///
/// Where gradients are sharded (`lends`), a bucket has memory from its first gradient until it is reduced: from the
/// pool, or, where that is empty and no reduction is left that may be waited for, of this rank alone.
template <MemorySpace Space>
class Reducer {
 public:
  using stream = typename Space::stream;
  using here = std::source_location;

  Reducer(Buckets<Space>& buckets, std::vector<Entry<Space>>& entries, Wires<Space>& wires,
          const TrainingPolicies& policies, Pool<Space>* pool, bool overlap, bool allow_unused)
      : buckets_(buckets),
        entries_(entries),
        wires_(wires),
        policies_(policies),
        pool_(pool),
        overlap_(overlap),
        waits_(policies.stage < 3 || !allow_unused) {
    for (const auto& bucket : buckets) {
      count_ += bucket.trained ? 1 : 0;
      for (const auto& run : bucket.runs) apart_ = apart_ || run.gradient_apart;
    }
  }

  /// How many buckets have gradients: the first ones.
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] bool begun() const noexcept { return started_ > 0; }
  [[nodiscard]] bool lends() const noexcept { return policies_.stage >= 2; }

  /// Gives the gradients of a bucket memory.
  void open(std::size_t index, stream after) {
    Bucket<Space>& bucket = buckets_[index];
    bucket.ready_on.add(after);
    if (!lends()) return;
    if (!bucket.whole_gradient.empty()) return order<Space>(bucket.opened_on, after);
    bucket.opened_on = after;
    auto& run = bucket.runs.front();
    bucket.whole_gradient = borrow(run.layout.bytes(), after);
    run.gradient = run.layout.over(bucket.whole_gradient.span());
    std::size_t end = 0;  // what lies between the parameters is reduced with them
    const auto clear = [&](std::size_t to) {
      fill(after, bytes_of(run.gradient.subspan(end, to - end)), std::byte{0});
    };
    for (const auto& place : run.layout.places) {
      clear(place.begin);
      end = place.begin + place.size;
      entries_[place.entry].owned->gradient = run.gradient.subspan(place.begin, place.size);
    }
    clear(run.layout.size);
  }

  /// One more gradient of the bucket is final, on the streams that it is `ready_on`.
  void ready(std::size_t index, stream after, const here& location) {
    --buckets_[index].missing;
    if (!lends() && (!overlap_ || !moves())) return;
    if (!overlap_ && !waits_) return;
    while (started_ < count_ && buckets_[started_].missing == 0) launch_next(after, location);
    if (started_ > finished_) buckets_[started_ - 1].advance();
  }

  /// Begins what `ready` has not begun.
  void launch_rest(stream after, const here& location) {
    while (started_ < count_) launch_next(after, location);
  }
  /// Ends the reductions up to this bucket's, and has all that were ended before on other streams.
  void finish(std::size_t index, stream after) {
    while (finished_ <= index) finish_next(after);
    finished_on_.before(after);
    finished_on_.clear();
    finished_on_.add(after);
  }
  void finish_all(stream after) {
    if (started_ > 0) finish(started_ - 1, after);
  }
  /// For the next step, or the next of its micro-batches, whose gradients are added to those before.
  /// @pre nothing is in flight
  void restart(bool adds) noexcept {
    for (auto& bucket : buckets_) bucket.missing = bucket.members.size();
    started_ = finished_ = 0;
    finished_on_.clear();
    adds_ = adds && policies_.accumulation == Accumulation::sharded;
  }

 private:
  /// Whether anything is to be done but to leave gradients where they are.
  [[nodiscard]] bool moves() const { return wires_.all.size() > 1 || apart_; }

  /// From the pool, once the oldest reductions have given back enough; else of this rank alone.
  [[nodiscard]] Loan<Space> borrow(std::size_t bytes, stream after) {
    auto memory = pool_->take(bytes, after);
    while (memory.empty() && finished_ < started_ && (waits_ || (overlap_ && buckets_[finished_].arrived()))) {
      finish_next(after);
      memory = pool_->take(bytes, after);
    }
    return memory.empty() ? Loan<Space>(*pool_, bytes) : Loan<Space>(*pool_, memory);
  }

  void launch_next(stream after, const here& location) {
    location_ = location;
    Bucket<Space>& bucket = buckets_[started_];
    bucket.ready_on.before(after);
    bucket.ready_on.clear();
    for (auto& run : bucket.runs) {
      if (!run.converts()) continue;
      bucket.travel.push_back(borrow(run.travel_bytes(), after));
      run.travel = {bucket.travel.back().span().data(), run.layout.size, run.wire, size_of(run.wire)};
    }
    ++started_;
    if (!moves()) return;
    const bool everywhere = policies_.stage == 0;
    if (overlap_) return bucket.start_reduce(wires_, everywhere, adds_, entries_, after, location);
    bucket.execute_reduce(wires_, everywhere, adds_, entries_, after, location);
    finish(started_ - 1, after);
  }
  void finish_next(stream after) {
    Bucket<Space>& bucket = buckets_[finished_++];
    finished_on_.add(after);
    if (moves()) bucket.finish_reduce(wires_, policies_.stage == 0, adds_, entries_, after, location_);
    if (!bucket.travel.empty() || lends()) pool_->used_on(after);
    bucket.travel.clear();
    if (!lends()) return;
    for (const auto member : bucket.members) entries_[member].owned->gradient = {};
    bucket.runs.front().gradient = {};
    bucket.whole_gradient = {};
  }

  Buckets<Space>& buckets_;
  std::vector<Entry<Space>>& entries_;
  Wires<Space>& wires_;
  TrainingPolicies policies_;
  Pool<Space>* pool_;  // null where all gradients have memory of their own, and travel as they are
  bool overlap_;
  bool waits_;  // before the step: not where a rank that has no gradient begins a reduction only there, and is waited
                // for by who gathers weights
  bool adds_ = false;
  bool apart_ = false;
  here location_{};  // of the call that reductions were last begun in
  std::size_t count_ = 0;
  std::size_t started_ = 0;
  std::size_t finished_ = 0;
  Streams<Space> finished_on_;
};

}  // namespace distx::detail
