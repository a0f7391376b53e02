// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/detail/base/training_communicators.hpp"
#include "distx/parallel/detail/base/training_policies.hpp"
#include "distx/parallel/detail/bucket/bucket.hpp"
#include "distx/parallel/detail/engine/gather/weight_gather.hpp"
#include "distx/parallel/detail/engine/parameters/parameter_store.hpp"
#include "distx/parallel/detail/engine/step/gradient_tree.hpp"
#include "distx/parallel/detail/engine/step/one_pass_update.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Returns the averaging op of a floating element type.
[[nodiscard]] inline AnyOp average_of(ElementType type) noexcept {
  return with_type(type, []<class T>(std::type_identity<T>) { return AnyOp::make<T>(average); });
}

/// Which buckets a step reduces and updates in one pass: none, the only one, or all that have memory until the step.
enum class OnePass { never, single, always };

/// Reduces a step's gradients bucket by bucket, in the order of the buckets on every rank, regardless of the order in
/// which they fill.
///
/// Where gradients are sharded (`allocates_gradients_lazily`), a bucket has memory from its first gradient until it is
/// reduced: from the pool, or separate memory where the pool is exhausted and no reduction is left to wait for. A
/// deferred bucket is not communicated before `finish`, which can pass its gradients to the update without storing
/// averages. At stage 3 each reduction carries a hash of the order of `ready`, so that ranks with different orders get
/// a MismatchError, not a deadlock.
template <MemorySpace Space>
class GradientReducer {
 public:
  using stream = typename Space::stream;
  using here = std::source_location;

  GradientReducer(Buckets<Space>& buckets, const ParameterStore<Space>& parameters, TrainingCommunicators<Space>& comms,
                  const TrainingPolicies& policies, MemoryPool<Space>& pool, bool overlap, bool allow_unused,
                  OnePass one_pass)
      : buckets_(buckets),
        entries_(parameters.entries()),
        comms_(comms),
        policies_(policies),
        pool_(pool),
        overlap_(overlap),
        waits_(policies.stage < 3 || !allow_unused),
        compares_order_(policies.stage == 3 && !allow_unused),
        tree_(policies, comms.all().size()),
        bucket_of_(entries_.size()),
        reductions_(buckets.size()) {
    bool separate = false;
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      for (const auto member : buckets[b].members) bucket_of_[member] = b;
      count_ += buckets[b].trained ? 1 : 0;
      for (const auto& buffer : buckets[b].buffers)
        separate = separate || (buffer.separate_gradient_shard && !buffer.fills_shard);
    }
    moves_ = comms.all().size() > 1 || separate || tree_.used();
    defer(one_pass);
    restart(false);
  }

  /// The number of trained buckets, which are the first ones.
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  /// Whether a reduction of this micro-batch has started, or waits for the step.
  [[nodiscard]] bool started() const noexcept {
    const bool waits = count_ > 0 && (reductions_[0].deferred || (allocates_gradients_lazily() && !moves_));
    return started_ > 0 || (waits && reductions_[0].missing == 0);
  }
  /// Whether parameters become ready in the same order on every rank.
  [[nodiscard]] bool compares_order() const noexcept { return compares_order_; }
  /// Whether gradients have memory only while they are needed.
  [[nodiscard]] bool allocates_gradients_lazily() const noexcept { return policies_.stage >= 2; }

  /// Gives the gradients of a parameter's bucket memory, on behalf of work enqueued on `after`.
  /// @return whether they are zeroed: on a GPU the first call for a bucket zeroes all of it at once
  bool open(std::size_t parameter, stream after) {
    Bucket<Space>& bucket = buckets_[bucket_of_[parameter]];
    Reduction& reduction = reductions_[bucket_of_[parameter]];
    reduction.ready_on.add(after);
    if (allocates_gradients_lazily() ? !bucket.buffers.front().gradient.empty() : reduction.zeroed) {
      order<Space>(reduction.opened_on, after);
      return zeroes_buckets;
    }
    reduction.opened_on = after;
    auto& buffer = bucket.buffers.front();
    if (allocates_gradients_lazily()) allocate_gradient(buffer, reduction, after);
    if constexpr (zeroes_buckets) {
      fill(after, bytes_of(buffer.gradient), std::byte{0});
      reduction.zeroed = true;
    }
    return zeroes_buckets;
  }

  /// Completes reductions only in `finish` until the next step, and allocates where the pool has no memory.
  void postpone() noexcept { postpones_ = true; }

  /// Notes that a use of the parameter's gradient was written on `after`.
  void written_on(std::size_t parameter, stream after) { reductions_[bucket_of_[parameter]].ready_on.add(after); }

  /// Notes that a gradient is final, and starts every reduction whose turn has come.
  void ready(std::size_t parameter, stream after, const here& location) {
    --reductions_[bucket_of_[parameter]].missing;
    if (compares_order_) order_ = fnv1a(std::array{order_, std::uint64_t{parameter}});
    if (!moves_ || (!allocates_gradients_lazily() && !overlap_)) return;
    if (!overlap_ && !waits_) return;
    while (started_ < count_ && reductions_[started_].missing == 0 && !reductions_[started_].deferred)
      start_next(after, location);
    if (started_ > finished_) poll(reductions_[started_ - 1]);
  }

  /// Starts the remaining reductions of the micro-batch; calls `before(parameter)` for the parameters of each.
  template <class F>
  void start_rest(stream after, const here& location, F&& before) {
    while (started_ < count_) {
      for (const auto member : buckets_[started_].members) before(member);
      start_next(after, location);
    }
  }
  /// Whether the step may update a bucket while it is reduced.
  [[nodiscard]] bool in_one_pass(std::size_t index) const noexcept { return reductions_[index].deferred && !adds_; }
  /// Completes the reductions up to bucket `index`, for work enqueued on `after`.
  /// @param update  if not null, takes the gradients of the last one, unless that is complete. @pre in_one_pass(index)
  void finish(std::size_t index, stream after, OnePassUpdate<Space>* update = nullptr) {
    while (finished_ <= index) finish_next(after, finished_ == index ? update : nullptr);
    finished_on_.before(after);
    finished_on_.clear();
    finished_on_.add(after);
  }
  void finish_all(stream after) {
    if (started_ > 0) finish(started_ - 1, after);
  }
  /// Begins the next micro-batch; if `adds`, its gradients are added to those before.
  /// @pre every reduction is finished
  void restart(bool adds) noexcept {
    const bool keeps = adds && policies_.accumulation == Accumulation::local;
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      reductions_[b].missing = buckets_[b].members.size();
      reductions_[b].zeroed = keeps && reductions_[b].zeroed;
    }
    started_ = finished_ = 0;
    order_ = 0;
    finished_on_.clear();
    postpones_ = postpones_ && adds;
    adds_ = adds && policies_.accumulation == Accumulation::sharded;
    tree_.restart(adds);
  }
  /// Sets the state of all hooks to zero.
  void forget() {
    for (auto& bucket : buckets_)
      for (auto& buffer : bucket.buffers) std::fill(buffer.hook_state.begin(), buffer.hook_state.end(), 0.0F);
  }
  /// Ends what is in flight, or waits for it, before its memory is released.
  void abandon() noexcept {
    for (auto& reduction : reductions_) reduction.pending.clear();
  }
  /// Rethrows the error that is being handled. At stage 3 a mismatch, or a revocation that a mismatch among the
  /// reductions in flight has caused, is one of the order of `ready`. One that the ranks have agreed on is not.
  [[noreturn]] void explain() {
    bool mismatch = false;
    std::string found;
    try {
      throw;
    } catch (const AgreedMismatch&) {
    } catch (const MismatchError& error) {
      mismatch = true;
      found = " (" + error.message() + ")";
    } catch (const RevokedError&) {
      for (std::size_t i = finished_; compares_order_ && i < started_ && !mismatch; ++i)
        mismatch = has_mismatch(reductions_[i]);
    } catch (...) {
    }
    if (!compares_order_ || !mismatch) throw;
    const auto& comm = comms_.all();
    throw MismatchError("parameters became ready in different orders on different ranks" + found +
                            "; at stage 3 of ZeRO, call ready in the same order on every rank",
                        {"ready", comm.backend(), comm.rank(), comm.size(), location_});
  }

 private:
  /// Whether one call zeroes a bucket: on the host each gradient stays in the caches until it is written.
  static constexpr bool zeroes_buckets = !done_at_return<Space>;

  /// A bucket's reduction in this micro-batch.
  struct Reduction {
    std::size_t missing = 0;    // members that are not ready
    Streams<Space> ready_on{};  // where its gradients are written
    stream opened_on{};         // where its memory was taken, or zeroed
    bool zeroed = false;        // all of its gradients, in this step or micro-batch
    bool deferred = false;      // communicated by `finish`, which can update in the same pass
    PoolAllocation<Space> gradient{};
    std::vector<PoolAllocation<Space>> converted{};
    std::vector<PoolAllocation<Space>> exchanged{};  // of each buffer, with Reproducible
    std::vector<Pending<Space>> pending{};           // last, since they borrow what is above
  };

  /// Leaves reductions to `finish`. Where gradients are allocated lazily, only the last bucket can keep its memory
  /// until then.
  void defer(OnePass one_pass) {
    if (one_pass == OnePass::never || (one_pass == OnePass::single && count_ > 1)) return;
    for (std::size_t b = allocates_gradients_lazily() && count_ > 0 ? count_ - 1 : 0; b < count_; ++b)
      reductions_[b].deferred =
          buckets_[b].update->takes_operands() &&
          std::none_of(buckets_[b].buffers.begin(), buckets_[b].buffers.end(),
                       [](const auto& buffer) { return buffer.converts() || buffer.hook != nullptr; });
  }

  /// Takes memory for a bucket's gradients. The padding between them is reduced with them, and so is zeroed.
  void allocate_gradient(FlatBuffer<Space>& buffer, Reduction& reduction, stream after) {
    if (!buffer.fills_shard) reduction.gradient = borrow(buffer.layout.bytes(), after);
    buffer.gradient =
        buffer.layout.over(buffer.fills_shard ? bytes_of(buffer.gradient_shard) : reduction.gradient.span());
    std::size_t end = 0;
    const auto clear = [&](std::size_t to) {
      if constexpr (!zeroes_buckets) fill(after, bytes_of(buffer.gradient.subspan(end, to - end)), std::byte{0});
    };
    for (const auto& range : buffer.layout.ranges) {
      clear(range.begin);
      end = range.begin + range.size;
      entries_[range.entry].owned->gradient = buffer.gradient.subspan(range.begin, range.size);
    }
    clear(buffer.layout.size);
  }

  /// Takes memory from the pool once the oldest reductions have given back enough, or else allocates it.
  [[nodiscard]] PoolAllocation<Space> borrow(std::size_t bytes, stream after) {
    auto memory = pool_.take(bytes, after);
    while (memory.empty() && finished_ < started_ && !postpones_ &&
           (waits_ || (overlap_ && done(reductions_[finished_])))) {
      finish_next(after);
      memory = pool_.take(bytes, after);
    }
    return memory.empty() ? pool_.allocate(bytes, after) : std::move(memory);
  }

  void start_next(stream after, const here& location) try {
    location_ = location;
    Bucket<Space>& bucket = buckets_[started_];
    const flight::Label label = label_of(bucket, "reduce", started_, entries_);
    Reduction& reduction = reductions_[started_];
    reduction.ready_on.before(after);
    reduction.ready_on.clear();
    for (auto& buffer : bucket.buffers) take_memory(buffer, reduction, after);
    ++started_;
    if (!moves_) return;
    for (std::size_t i = 0; i < bucket.buffers.size(); ++i) {
      bucket.buffers[i].pack_gradients(after, entries_);
      if (!reduction.deferred) start(bucket, i, reduction, after);
    }
    if (!reduction.deferred && (!overlap_ || tree_.keeps())) finish(started_ - 1, after);
  } catch (const Error&) {
    explain();
  }
  /// Takes memory for what a reduction sends and receives, where that is not the gradients'.
  void take_memory(FlatBuffer<Space>& buffer, Reduction& reduction, stream after) {
    if (tree_.used() && !tree_.keeps())
      reduction.exchanged.push_back(buffer.exchanged == 0 ? PoolAllocation<Space>()
                                                          : borrow(buffer.exchanged_bytes(), after));
    if (!buffer.converts()) return;
    reduction.converted.push_back(borrow(buffer.converted_bytes(), after));
    buffer.converted = {reduction.converted.back().span().data(), buffer.layout.size, buffer.communication_type,
                        size_of(buffer.communication_type)};
  }
  /// Starts the reduction of one of a bucket's buffers, or makes it.
  void start(const Bucket<Space>& bucket, std::size_t index, Reduction& reduction, stream after) {
    const auto& buffer = bucket.buffers[index];
    auto& comm = comms_.reducing();
    const auto make = [&](const auto& call) {
      overlap_ ? keep(reduction, bucket, comm.start(call, after)) : make_in_order(comm, call, after);
    };
    if (buffer.converts()) cast_to(after, buffer.converted, buffer.gradient);
    if (tree_.used()) {
      tree_.add(buffer, after);
      if (!tree_.keeps() && comm.size() > 1)
        make(tree_.exchange(buffer, reduction.exchanged[index], order_, location_));
    } else if (buffer.hook != nullptr) {
      run_hook(buffer);
    } else if (policies_.stage == 0) {
      make(AllReduce<AnyElement, AnyOp, Space>{buffer.sent(), buffer.received(adds_),
                                               average_of(buffer.communication_type), location_});
    } else {
      make(reduce_scatter(buffer, nullptr));
    }
  }

  void run_hook([[maybe_unused]] const FlatBuffer<Space>& buffer) {
    if constexpr (HostAccessible<Space>) {
      if (compares_order_) execute(comms_.reducing(), Barrier<Space>{location_, order_});
      const auto shape = buffer.shape(entries_, policies_.stage == 0);
      buffer.hook->reduce({shape, floats(buffer.gradient), floats(buffer.received(adds_)), buffer.begin,
                           buffer.hook_state, comms_.reducing(), location_});
    }
  }

  [[nodiscard]] ReduceScatter<AnyElement, AnyOp, Space> reduce_scatter(const FlatBuffer<Space>& buffer,
                                                                       OperandConsumer* consumer) const {
    return {buffer.sent(),
            buffer.received(adds_),
            average_of(buffer.communication_type),
            buffer.layout.partition.counts(),
            location_,
            order_,
            consumer};
  }

  /// Keeps a reduction in flight together with the memory that the vendor's library accesses until it is complete.
  static void keep(Reduction& reduction, const Bucket<Space>& bucket, Pending<Space> started) {
    auto& pending = reduction.pending.emplace_back(std::move(started));
    for (const auto& memory : bucket.memory) pending.keep(memory);
    if (!reduction.gradient.empty()) pending.keep(reduction.gradient.owner());
    for (const auto& memory : reduction.converted) pending.keep(memory.owner());
    for (const auto& memory : reduction.exchanged)
      if (!memory.empty()) pending.keep(memory.owner());
  }

  void finish_next(stream after, OnePassUpdate<Space>* update = nullptr) try {
    const std::size_t index = finished_++;
    Bucket<Space>& bucket = buckets_[index];
    const flight::Label label = label_of(bucket, "reduce", index, entries_);
    Reduction& reduction = reductions_[index];
    finished_on_.add(after);
    for (auto& pending : reduction.pending) pending.wait(after);
    reduction.pending.clear();
    for (std::size_t i = 0; i < (moves_ && !tree_.keeps() ? bucket.buffers.size() : 0); ++i) {
      auto& buffer = bucket.buffers[i];
      if (reduction.deferred)
        make_in_order(comms_.reducing(), reduce_scatter(buffer, update == nullptr ? nullptr : update->of(i)), after);
      if (tree_.used()) tree_.finish(buffer, reduction.exchanged[i], comms_.reducing(), after, location_);
      auto part = buffer.received(adds_);
      if (auto* const across = comms_.across())
        make_in_order(*across, AllReduce<AnyElement, AnyOp, Space>{part, part, average_of(part.type()), location_},
                      after);
      if (buffer.restores) {
        cast_to(after, buffer.reduced(adds_), part);
        part = buffer.reduced(adds_);
      }
      if (buffer.separate_gradient_shard && adds_)
        add_to(after, buffer.gradient_shard, part);
      else if (policies_.stage == 0 && !buffer.separate_gradient_shard)
        buffer.unpack(after, entries_, &ParameterEntry<Space>::gradient);
    }
    if (!reduction.converted.empty() || !reduction.exchanged.empty() || allocates_gradients_lazily())
      pool_.used_on(after);
    reduction.converted.clear();
    reduction.exchanged.clear();
    if (!allocates_gradients_lazily()) return;
    for (const auto member : bucket.members) entries_[member].owned->gradient = {};
    bucket.buffers.front().gradient = {};
    reduction.gradient = {};
  } catch (const Error&) {
    explain();
  }

  [[nodiscard]] static bool has_mismatch(Reduction& reduction) {
    for (auto& pending : reduction.pending) try {
        pending.wait();
      } catch (const MismatchError&) {
        return true;
      } catch (const Error&) {  // revoked because of another one
      }
    return false;
  }
  /// Lets a backend without a progress thread make progress.
  static void poll(Reduction& reduction) {
    if constexpr (HostAccessible<Space>)
      for (auto& pending : reduction.pending)
        if (!pending.test()) return;
  }
  [[nodiscard]] static bool done(Reduction& reduction) {
    return std::all_of(reduction.pending.begin(), reduction.pending.end(), [](auto& one) { return one.test(); });
  }

  Buckets<Space>& buckets_;
  const std::vector<ParameterEntry<Space>>& entries_;
  TrainingCommunicators<Space>& comms_;
  TrainingPolicies policies_;
  MemoryPool<Space>& pool_;
  bool overlap_;
  // Whether memory may wait for a reduction before the step: not where a rank without a gradient starts it only there
  // while its peers wait in a gather.
  bool waits_;
  bool compares_order_;
  bool postpones_ = false;
  bool moves_ = false;  // whether gradients are communicated or copied at all
  bool adds_ = false;
  here location_{};  // of the call that started the last reduction
  GradientTree<Space> tree_;
  std::vector<std::size_t> bucket_of_;
  std::vector<Reduction> reductions_;
  std::size_t count_ = 0;
  std::size_t started_ = 0;
  std::size_t finished_ = 0;
  std::uint64_t order_ = 0;  // hash of the parameters in the order of their `ready`
  Streams<Space> finished_on_;
};

}  // namespace distx::inline DISTX_ABI::detail
