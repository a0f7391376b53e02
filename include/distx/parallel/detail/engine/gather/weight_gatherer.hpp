// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <map>

#include "distx/parallel/detail/base/training_communicators.hpp"
#include "distx/parallel/detail/engine/gather/weight_gather.hpp"
#include "distx/parallel/detail/engine/parameters/parameter_store.hpp"
#include "distx/parallel/unsharded.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Gives owned parameters copies of their whole values, in memory of this rank.
///
/// @param with_values  `with_values(bucket, copy)` calls `copy()` while the bucket's values are whole
template <MemorySpace Space, class WithValues>
void copy_whole_values(const Buckets<Space>& buckets, const std::vector<ParameterEntry<Space>>& entries,
                       const std::shared_ptr<MemoryAccount>& account, typename Space::stream after,
                       WithValues&& with_values) {
  std::vector<TrackedMemory<Space>> whole;  // of each bucket
  for (const auto& bucket : buckets) {
    const auto& buffer = bucket.buffers.front();
    whole.push_back(nullptr);
    if (!bucket.owned) continue;
    whole.back() = allocate_tracked_local<Space>(account, observe::MemoryKind::weights, buffer.layout.bytes());
    with_values(bucket, [&] { copy(after, whole.back()->span(), bytes_of(buffer.value)); });
  }
  for (std::size_t b = 0; b < whole.size(); ++b) {
    if (whole[b] == nullptr) continue;
    const BucketLayout& layout = buckets[b].buffers.front().layout;
    for (const auto& range : layout.ranges) {
      auto& state = *entries[range.entry].owned;
      state.value_memory = whole[b];
      state.place(layout.over(whole[b]->span()).subspan(range.begin, range.size));
      state.sharded = false;
    }
  }
}

/// Gathers sharded weights unit by unit while scopes of `unshard` need them.
///
/// The order of the scopes is remembered, and the unit that followed in the last step is prefetched if the pool has
/// memory for it. All ranks unshard in the same order: each gather carries its unit, and a different one on another
/// rank is a MismatchError.
///
/// Mapped weights, which ranks read in each other's shards, need no memory, no copy and two barriers in a step: the
/// first scope begins when every rank has finished its updates, and the updates begin when no rank has a scope. Each
/// barrier carries the order of the units since the last one.
template <MemorySpace Space>
class WeightGatherer {
 public:
  using stream = typename Space::stream;
  using here = std::source_location;

  WeightGatherer(Buckets<Space>& buckets, const ParameterStore<Space>& parameters, TrainingCommunicators<Space>& comms,
                 MemoryPool<Space>& pool, bool overlap)
      : buckets_(buckets),
        entries_(parameters.entries()),
        comms_(comms),
        pool_(pool),
        overlap_(overlap),
        gathers_(buckets.size()),
        unit_of_(entries_.size()) {
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      if (!buckets[b].owned) continue;
      mapped_ = !buckets[b].buffers.front().mapped_value.empty();  // all owned buckets, or none
      const std::string name = entries_[buckets[b].members.front()].unit();
      std::size_t unit = 0;
      while (unit < units_.size() && units_[unit].name != name) ++unit;
      if (unit == units_.size()) units_.push_back({name});
      units_[unit].buckets.push_back(b);
      for (const auto member : buckets[b].members) unit_of_[member] = unit;
    }
  }

  /// Returns the bytes of the units that are always whole and of the two largest others: one in use, one prefetched;
  /// none if weights are mapped.
  [[nodiscard]] static std::size_t pool_bytes(const Buckets<Space>& buckets,
                                              const std::vector<ParameterEntry<Space>>& entries, bool overlap) {
    std::map<std::string, std::size_t> units;
    for (const auto& bucket : buckets)
      if (bucket.owned && bucket.buffers.front().mapped_value.empty())
        units[entries[bucket.members.front()].unit()] += round_up_to_lines(bucket.buffers.front().gathered_bytes());
    std::size_t bytes = 0;
    std::vector<std::size_t> others;
    for (const auto& [name, size] : units)
      if (std::any_of(entries.begin(), entries.end(),
                      [&name = name](const auto& entry) { return entry.options.always_whole && entry.unit() == name; }))
        bytes += size;
      else
        others.push_back(size);
    std::sort(others.begin(), others.end(), std::greater<>{});
    for (std::size_t i = 0; i < std::min<std::size_t>(others.size(), overlap ? 2 : 1); ++i) bytes += others[i];
    return bytes;
  }

  /// Returns the unit of a parameter, or nothing if its weights are borrowed and always whole.
  [[nodiscard]] std::optional<std::size_t> unit_of(std::size_t parameter) const noexcept { return unit_of_[parameter]; }
  /// Returns the units of the parameters with `.always_whole`, in their order.
  [[nodiscard]] std::vector<std::size_t> always_whole() const {
    std::vector<std::size_t> units;
    for (std::size_t i = 0; i < entries_.size(); ++i)
      if (entries_[i].options.always_whole && unit_of_[i] &&
          std::find(units.begin(), units.end(), *unit_of_[i]) == units.end())
        units.push_back(*unit_of_[i]);
    return units;
  }
  /// Returns the name of a unit that a scope holds, or null.
  [[nodiscard]] const std::string* unsharded() const noexcept {
    for (const auto& unit : units_)
      if (unit.scopes > 0) return &unit.name;
    return nullptr;
  }

  /// Returns whether a scope holds the unit, so that another `acquire` is local.
  [[nodiscard]] bool unsharded(std::size_t index) const noexcept { return units_[index].scopes > 0; }

  /// Makes a unit's weights whole for one more scope. Collective if no scope holds them yet.
  ///
  /// @param remember  whether the call is part of the order that prefetching follows
  void acquire(std::size_t index, stream after, const here& location, bool remember = true) {
    WeightUnit& unit = units_[index];
    pool_.used_on(after);
    unit.used_on.before(after);
    unit.used_on.add(after);
    if (unit.scopes++ > 0) return;
    if (mapped_) return show_mapped(index, location);
    auto& order = orders_[evaluating_ ? 1 : 0];
    if (remember && (position_ == order.size() || order[position_] != index)) {
      order.resize(position_);
      order.push_back(index);
    }
    if (remember) ++position_;
    try {
      if (unit.state == UnitState::sharded) {
        // In an uneven step the ranks without a batch hold other units, and would take other pieces of common memory.
        while ((prefetches_ || !pool_.common()) && !take_from_pool(unit, after) && drop_prefetched(after)) {
        }
        for (const auto b : unit.buckets)
          if (gathers_[b].memory.empty())
            set_memory(b, pool_.allocate(buckets_[b].buffers.front().gathered_bytes(), after));
        gather(unit, after, location);
      }
      // After this unit's own messages, before this rank waits for them.
      if (remember && overlap_ && prefetches_ && position_ < order.size()) prefetch(order[position_], after, location);
      for (const auto b : unit.buckets) gathers_[b].gather.finish(buckets_[b], entries_, after);
    } catch (const MismatchError& error) {
      fail_order("this rank unshards '" + unit.name + "' while another rank unshards another unit" +
                     (pool_.common() ? " or has other units unsharded" : ""),
                 error, location);
    }
    for (const auto b : unit.buckets) buckets_[b].buffers.front().place_values(entries_);
    unit.state = UnitState::whole;
  }

  void release(std::size_t index) noexcept {
    WeightUnit& unit = units_[index];
    if (--unit.scopes > 0) return;
    reshard(unit);
  }

  /// Gathers exact weights until the next call, or, if not `exact`, as Compress encodes them. @pre no scope holds a
  /// unit
  void gather_exactly(bool exact, stream after) {
    invalidate(after);
    exact_ = exact;
  }
  /// Gives all parameters with sharded weights whole weights in memory of this rank. Collective, at the training's end.
  void make_whole(const std::shared_ptr<MemoryAccount>& account, stream after, const here& location) {
    gather_exactly(true, after);
    copy_whole_values(buckets_, entries_, account, after, [&](const Bucket<Space>& bucket, auto&& copy_values) {
      const std::size_t unit = *unit_of_[bucket.members.front()];
      acquire(unit, after, location, false);
      copy_values();
      release(unit);
    });
  }

  /// Prepares a change of the weights, outside all scopes: drops prefetched weights, and blocks until no rank reads
  /// this rank's shards. Collective.
  void await_readers(stream after, const here& location) {
    invalidate(after);
    if (std::exchange(reading_, false))
      synchronize("the ranks have unsharded different units since the last step", opened_, location);
    opened_.clear();
  }
  /// Gathers units when they are used, and not ahead, until `restart`: in an uneven step the ranks without a batch have
  /// more free memory than the others, and would prefetch more. Memory that the ranks of a host share is not used
  /// either.
  void stop_prefetching(stream after) {
    invalidate(after);
    prefetches_ = false;
  }
  /// Begins the next step, and with it the remembered order.
  void restart(stream after) {
    invalidate(after);
    if (position_ < orders_[0].size()) orders_[0].resize(position_);
    position_ = 0;
    prefetches_ = true;
  }
  /// Between these two calls, scopes follow a separate order.
  void begin_evaluation() noexcept {
    evaluating_ = true;
    training_position_ = std::exchange(position_, 0);
  }
  void end_evaluation() noexcept {
    if (position_ < orders_[1].size()) orders_[1].resize(position_);
    evaluating_ = false;
    position_ = training_position_;
  }
  /// Ends what is in flight, or waits for it, before its memory is released.
  void abandon() noexcept {
    for (auto& each : gathers_) each.gather.abandon();
  }

 private:
  enum class UnitState { sharded, prefetched, whole };
  struct WeightUnit {
    std::string name;
    std::vector<std::size_t> buckets{};
    Streams<Space> used_on{};
    int scopes = 0;
    UnitState state = UnitState::sharded;
  };
  struct BucketGather {
    PoolAllocation<Space> memory{};
    WeightGather<Space> gather{};  // last, since what is in flight borrows the memory
  };

  /// Makes a unit's mapped weights readable: after the first such call since weights have changed, on every rank.
  void show_mapped(std::size_t index, const here& location) {
    WeightUnit& unit = units_[index];
    const std::uint64_t order[] = {order_, index};
    order_ = fnv1a(order);
    if (opened_.size() < 16) opened_.append(opened_.empty() ? "" : " ").append(unit.name);
    if (!std::exchange(reading_, true))
      synchronize("this rank unshards '" + unit.name + "' while another rank unshards another unit", unit.name,
                  location);
    for (const auto b : unit.buckets) {
      auto& buffer = buckets_[b].buffers.front();
      buffer.value = buffer.mapped_value;
      buffer.place_values(entries_);
    }
    unit.state = UnitState::whole;
  }
  /// Blocks until every rank has unsharded the same units.
  /// @param units  that this rank has unsharded, for errors
  void synchronize(const std::string& difference, std::string_view units, const here& location) {
    if (comms_.shards() == 1) return;
    try {
      execute(comms_.gathering(), Barrier<Space>{location, order_, units});
    } catch (const MismatchError& error) {
      fail_order(difference, error, location);
    }
  }
  [[noreturn]] void fail_order(const std::string& difference, const MismatchError& found, const here& location) {
    const auto& comm = comms_.gathering();
    throw MismatchError(difference + " (" + found.message() + "); call unshard in the same order on every rank",
                        {"unshard", comm.backend(), comm.rank(), comm.size(), location});
  }
  void set_memory(std::size_t b, PoolAllocation<Space> memory) {
    gathers_[b].memory = std::move(memory);
    auto& buffer = buckets_[b].buffers.front();
    buffer.gather_into(gathers_[b].memory.span());
  }
  /// Takes memory for all of the unit, or for nothing of it.
  bool take_from_pool(WeightUnit& unit, stream after) {
    for (const auto b : unit.buckets) {
      auto memory = pool_.take(buckets_[b].buffers.front().gathered_bytes(), after);
      if (memory.empty()) {
        reshard(unit);
        return false;
      }
      set_memory(b, std::move(memory));
    }
    return true;
  }
  void gather(WeightUnit& unit, stream after, const here& location) {
    for (const auto b : unit.buckets) {
      const flight::Label label = label_of(buckets_[b], "gather", b, entries_);
      gathers_[b].gather.start(buckets_[b], comms_.gathering(), entries_, overlap_, identity_of(b), unit.name, after,
                               location, gathers_[b].memory.owner(), exact_);
    }
  }
  /// Returns what all ranks must gather, and where if ranks share the memory.
  [[nodiscard]] std::uint64_t identity_of(std::size_t b) const {
    const std::uint64_t what = fnv1a("bucket " + std::to_string(b));
    const std::uint64_t which[] = {what, pool_.place_of(gathers_[b].memory)};
    return pool_.common() ? fnv1a(which) : what;
  }
  void invalidate(stream after) {
    while (drop_prefetched(after)) {
    }
  }
  void prefetch(std::size_t index, stream after, const here& location) {
    WeightUnit& unit = units_[index];
    if (unit.state != UnitState::sharded || unit.scopes > 0 || !take_from_pool(unit, after)) return;
    gather(unit, after, location);
    unit.state = UnitState::prefetched;
  }
  /// Releases a prefetched unit that no scope needs yet.
  /// @return whether there was one
  bool drop_prefetched(stream after) {
    for (auto& unit : units_) {
      if (unit.state != UnitState::prefetched || unit.scopes > 0) continue;
      for (const auto b : unit.buckets) gathers_[b].gather.finish(buckets_[b], entries_, after);
      pool_.used_on(after);
      reshard(unit);
      return true;
    }
    return false;
  }
  void reshard(WeightUnit& unit) noexcept {
    for (const auto b : unit.buckets) {
      buckets_[b].buffers.front().value = {};
      buckets_[b].buffers.front().place_values(entries_);
      gathers_[b].memory = {};
    }
    unit.used_on.clear();
    unit.state = UnitState::sharded;
  }

  Buckets<Space>& buckets_;
  const std::vector<ParameterEntry<Space>>& entries_;
  TrainingCommunicators<Space>& comms_;
  MemoryPool<Space>& pool_;
  bool overlap_;
  bool mapped_ = false;
  bool reading_ = false;     // mapped weights, since they have changed
  std::uint64_t order_ = 0;  // hash of the mapped units in the order of their scopes
  std::string opened_{};     // the first of them since the weights have changed, for errors
  bool prefetches_ = true;
  bool exact_ = false;
  std::vector<BucketGather> gathers_;
  std::vector<WeightUnit> units_;
  std::vector<std::optional<std::size_t>> unit_of_;
  std::vector<std::size_t> orders_[2];  // in training, in evaluation
  std::size_t position_ = 0;
  std::size_t training_position_ = 0;
  bool evaluating_ = false;
};

template <MemorySpace Space>
Evaluation<Space>::Evaluation(const std::shared_ptr<int>& count,
                              const std::shared_ptr<WeightGatherer<Space>>& gatherer) noexcept
    : count_(count), gatherer_(gatherer) {
  if ((*count)++ == 0 && gatherer != nullptr) gatherer->begin_evaluation();
}
template <MemorySpace Space>
Evaluation<Space>::~Evaluation() {
  const auto count = count_.lock();
  if (count == nullptr || --*count > 0) return;
  if (const auto gatherer = gatherer_.lock(); gatherer != nullptr) gatherer->end_evaluation();
}

}  // namespace distx::inline DISTX_ABI::detail

namespace distx::inline DISTX_ABI {

template <MemorySpace Space>
void Unsharded<Space>::hold(const std::shared_ptr<detail::WeightGatherer<Space>>& gatherer, std::size_t unit,
                            typename Space::stream after, const std::source_location& location, bool remember) {
  if (std::find(units_.begin(), units_.end(), unit) != units_.end()) return;
  units_.reserve(units_.size() + 1);
  gatherer->acquire(unit, after, location, remember);
  units_.push_back(unit);
  gatherer_ = gatherer;
}
template <MemorySpace Space>
void Unsharded<Space>::hold_only(const std::shared_ptr<detail::WeightGatherer<Space>>& gatherer,
                                 std::optional<std::size_t> unit, typename Space::stream after,
                                 const std::source_location& location) {
  if (unit && units_ == std::vector{*unit}) return;
  end();
  if (unit) hold(gatherer, *unit, after, location, false);
}
template <MemorySpace Space>
void Unsharded<Space>::end() noexcept {
  if (const auto gatherer = gatherer_.lock(); gatherer != nullptr)
    for (const auto unit : units_) gatherer->release(unit);
  units_.clear();
}

}  // namespace distx::inline DISTX_ABI
