// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <deque>

#include "distx/parallel/bucket.hpp"

namespace distx::detail {

template <MemorySpace Space>
using Buckets = std::deque<Bucket<Space>>;

/// Reduces a step's gradients, bucket by bucket in the order of the buckets, whatever the order in which they fill.
///
/// Where gradients are sharded (`lends`), a bucket has memory from its first gradient until it is reduced: from the
/// pool, or, where that is empty and no reduction is left to wait for, of this rank alone.
template <MemorySpace Space>
class Reducer {
 public:
  using stream = typename Space::stream;
  using here = std::source_location;

  Reducer(Buckets<Space>& buckets, std::vector<Entry<Space>>& entries, Wires<Space>& wires, int stage, bool overlap)
      : buckets_(buckets), entries_(entries), wires_(wires), stage_(stage), overlap_(overlap) {
    for (const auto& bucket : buckets) count_ += bucket.trained ? 1 : 0;
  }

  /// How many buckets have gradients: the first ones.
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] bool lends() const noexcept { return stage_ >= 2; }

  /// Gives the gradients of a bucket memory.
  void open(std::size_t index, Pool<Space>& pool, stream after) {
    Bucket<Space>& bucket = buckets_[index];
    if (!lends() || !bucket.whole_gradient.empty()) return;
    auto& run = bucket.runs.front();
    auto memory = pool.take(run.layout.bytes());
    while (memory.empty() && finished_ < started_) {
      finish_next(after);
      memory = pool.take(run.layout.bytes());
    }
    bucket.whole_gradient =
        memory.empty() ? Loan<Space>(pool, run.layout.bytes()) : Loan<Space>(pool, memory);
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

  /// One more gradient of the bucket is final.
  void ready(std::size_t index, stream after, const here& location) {
    --buckets_[index].missing;
    if (!lends() && (!overlap_ || wires_.parts() == 1)) return;
    while (started_ < count_ && buckets_[started_].missing == 0) launch_next(after, location);
    if (started_ > finished_) buckets_[started_ - 1].advance();
  }

  /// Begins what `ready` has not begun.
  void launch_rest(stream after, const here& location) {
    while (started_ < count_) launch_next(after, location);
  }
  /// Ends the reductions up to this bucket's.
  void finish(std::size_t index, stream after) {
    while (finished_ <= index) finish_next(after);
  }
  void finish_all(stream after) {
    while (finished_ < started_) finish_next(after);
  }
  /// @pre nothing is in flight
  void restart() noexcept {
    for (auto& bucket : buckets_) bucket.missing = bucket.members.size();
    started_ = finished_ = 0;
  }

 private:
  void launch_next(stream after, const here& location) {
    Bucket<Space>& bucket = buckets_[started_++];
    if (wires_.parts() == 1 && !lends()) return;
    if (overlap_) return bucket.start_reduce(wires_, stage_ == 0, entries_, after, location);
    bucket.execute_reduce(wires_, stage_ == 0, entries_, after, location);
    finish(started_ - 1, after);
  }
  void finish_next(stream after) {
    Bucket<Space>& bucket = buckets_[finished_++];
    bucket.finish_reduce(stage_ == 0 && wires_.parts() > 1, entries_, after);
    if (!lends()) return;
    for (const auto member : bucket.members) entries_[member].owned->gradient = {};
    bucket.runs.front().gradient = {};
    bucket.whole_gradient = {};
  }

  Buckets<Space>& buckets_;
  std::vector<Entry<Space>>& entries_;
  Wires<Space>& wires_;
  int stage_;
  bool overlap_;
  std::size_t count_ = 0;
  std::size_t started_ = 0;
  std::size_t finished_ = 0;
};

}  // namespace distx::detail
