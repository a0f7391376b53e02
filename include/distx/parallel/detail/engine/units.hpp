// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/detail/engine/reducer.hpp"

namespace distx::detail {

/// Sharded weights: whole while a scope asks for them, gathered unit by unit.
///
/// The order in which scopes ask is remembered; the unit that came next the last time is gathered ahead, if the pool
/// has room for it. All ranks ask in the same order.
template <MemorySpace Space>
class Units {
 public:
  using stream = typename Space::stream;
  using here = std::source_location;

  Units(Buckets<Space>& buckets, std::vector<Entry<Space>>& entries, Wires<Space>& wires, Pool<Space>& pool,
        bool overlap)
      : buckets_(buckets), entries_(entries), wires_(wires), pool_(pool), overlap_(overlap) {
    of_entry_.resize(entries.size(), none_);
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      if (!buckets[b].owned) continue;
      const std::string name = entries[buckets[b].members.front()].unit();
      std::size_t unit = 0;
      while (unit < units_.size() && units_[unit].name != name) ++unit;
      if (unit == units_.size()) units_.push_back({name});
      units_[unit].buckets.push_back(b);
      for (const auto member : buckets[b].members) of_entry_[member] = unit;
    }
  }

  /// Of the two largest units: one in use, one gathered ahead.
  [[nodiscard]] static std::size_t pool_bytes(const Buckets<Space>& buckets, const std::vector<Entry<Space>>& entries,
                                              bool overlap) {
    std::vector<std::pair<std::string, std::size_t>> sums;
    for (const auto& bucket : buckets) {
      if (!bucket.owned) continue;
      const std::string name = entries[bucket.members.front()].unit();
      auto sum = std::find_if(sums.begin(), sums.end(), [&](const auto& each) { return each.first == name; });
      if (sum == sums.end()) sum = sums.insert(sums.end(), {name, 0});
      sum->second += round_up_to_lines(bucket.runs.front().layout.bytes());
    }
    std::sort(sums.begin(), sums.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < std::min<std::size_t>(sums.size(), overlap ? 2 : 1); ++i) bytes += sums[i].second;
    return bytes;
  }

  /// The unit of an entry; all its weights are gathered together.
  [[nodiscard]] std::size_t unit_of(std::size_t entry) const noexcept { return of_entry_[entry]; }
  [[nodiscard]] static bool is_unit(std::size_t unit) noexcept { return unit != none_; }
  /// A unit that a scope holds, or none.
  [[nodiscard]] const std::string* held() const noexcept {
    for (const auto& unit : units_)
      if (unit.scopes > 0) return &unit.name;
    return nullptr;
  }

  /// Where it is not to be remembered, the order stays as it is, and nothing is gathered ahead.
  void acquire(std::size_t index, stream after, const here& location, bool remember = true) {
    Unit& unit = units_[index];
    pool_.used_on(after);
    unit.used_on.before(after);
    unit.used_on.add(after);
    if (unit.scopes++ > 0) return;
    auto& order = orders_[evaluating_ ? 1 : 0];
    if (remember && (position_ == order.size() || order[position_] != index)) {
      order.resize(position_);
      order.push_back(index);
    }
    if (remember) ++position_;
    if (unit.state == State::sharded) {
      while (!take_from_pool(unit, after) && drop_ahead(after)) {
      }
      for (const auto b : unit.buckets)
        if (buckets_[b].whole_value.empty()) lend(b, Loan<Space>(pool_, buckets_[b].runs.front().layout.bytes()));
      gather(unit, after, location);
    }
    // Behind this unit's own messages, before this rank waits for them.
    if (remember && overlap_ && position_ < order.size()) ahead(order[position_], after, location);
    for (const auto b : unit.buckets) buckets_[b].finish_gather(entries_, after);
    for (const auto b : unit.buckets) show(buckets_[b], true);
    unit.state = State::whole;
  }

  void release(std::size_t index) noexcept {
    Unit& unit = units_[index];
    if (--unit.scopes > 0) return;
    reshard(unit);
  }

  /// Values change: what was gathered ahead is out of date.
  void forget(stream after) {
    while (drop_ahead(after)) {
    }
  }
  /// A step is over: the order begins anew.
  void restart(stream after) {
    forget(after);
    if (position_ < orders_[0].size()) orders_[0].resize(position_);
    position_ = 0;
  }
  /// Between the two, scopes have an order of their own.
  void begin_evaluation() noexcept {
    evaluating_ = true;
    training_position_ = std::exchange(position_, 0);
  }
  void end_evaluation() noexcept {
    if (position_ < orders_[1].size()) orders_[1].resize(position_);
    evaluating_ = false;
    position_ = training_position_;
  }

 private:
  enum class State { sharded, ahead, whole };
  struct Unit {
    std::string name;
    std::vector<std::size_t> buckets{};
    Streams<Space> used_on{};
    int scopes = 0;
    State state = State::sharded;
  };
  static constexpr std::size_t none_ = ~std::size_t{0};

  void lend(std::size_t b, Loan<Space> loan) {
    buckets_[b].whole_value = std::move(loan);
    auto& run = buckets_[b].runs.front();
    run.value = run.layout.over(buckets_[b].whole_value.span());
  }
  /// Memory for all of the unit, or for nothing of it.
  bool take_from_pool(Unit& unit, stream after) {
    for (const auto b : unit.buckets) {
      const auto memory = pool_.take(buckets_[b].runs.front().layout.bytes(), after);
      if (memory.empty()) {
        reshard(unit);
        return false;
      }
      lend(b, Loan<Space>(pool_, memory));
    }
    return true;
  }
  void gather(Unit& unit, stream after, const here& location) {
    for (const auto b : unit.buckets)
      if (overlap_)
        buckets_[b].start_gather(wires_, entries_, after, location);
      else
        buckets_[b].execute_gather(wires_, entries_, after, location);
  }
  void ahead(std::size_t index, stream after, const here& location) {
    Unit& unit = units_[index];
    if (unit.state != State::sharded || unit.scopes > 0 || !take_from_pool(unit, after)) return;
    gather(unit, after, location);
    unit.state = State::ahead;
  }
  /// Lets go what was gathered ahead and is not needed yet; false where there is nothing.
  bool drop_ahead(stream after) {
    for (auto& unit : units_) {
      if (unit.state != State::ahead || unit.scopes > 0) continue;
      for (const auto b : unit.buckets) buckets_[b].finish_gather(entries_, after);
      pool_.used_on(after);
      reshard(unit);
      return true;
    }
    return false;
  }
  void reshard(Unit& unit) noexcept {
    for (const auto b : unit.buckets) {
      show(buckets_[b], false);
      buckets_[b].runs.front().value = {};
      buckets_[b].whole_value = {};
    }
    unit.used_on.clear();
    unit.state = State::sharded;
  }
  void show(Bucket<Space>& bucket, bool whole) noexcept {
    const auto& run = bucket.runs.front();
    for (const auto& place : run.layout.places)
      entries_[place.entry].owned->value =
          whole ? run.value.subspan(place.begin, place.size) : Span<AnyElement, Space>{};
  }

  Buckets<Space>& buckets_;
  std::vector<Entry<Space>>& entries_;
  Wires<Space>& wires_;
  Pool<Space>& pool_;
  bool overlap_;
  std::vector<Unit> units_;
  std::vector<std::size_t> of_entry_;
  std::vector<std::size_t> orders_[2];  // in training, in evaluation
  std::size_t position_ = 0;
  std::size_t training_position_ = 0;
  bool evaluating_ = false;
};

}  // namespace distx::detail
