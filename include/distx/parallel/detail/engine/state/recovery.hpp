// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>
#include <memory>
#include <optional>

#include "distx/comm/movement.hpp"
#include "distx/parallel/detail/base/typed.hpp"
#include "distx/parallel/detail/engine/state/replicas.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The state from which a training continues on other ranks: the newest version of which they have all shares.
///
/// Ranks that join have no copies: they learn where the shares are, and receive theirs.
template <MemorySpace Space>
class Recovery {
  using here = std::source_location;

 public:
  /// Agrees on the version; if no rank has any copies, there is none. Collective over all of `comms`.
  /// @param kept  this rank's copies, which may be older or newer ones; the chosen ones are left
  /// @param state  that of the training on these ranks
  Recovery(const ReplicaCommunicators<Space>& comms, std::vector<std::shared_ptr<Replicas<Space>>>& kept,
           const TrainingState<Space>& state, const here& location) {
    AnyCommunicator<Space>& comm = *comms.front();
    std::vector<Record> mine;
    for (const auto& replicas : kept)
      for (const auto* version : replicas->versions())
        mine.push_back({version->number, replicas->rank(), replicas->layout().ranks(),
                        replicas->holds(version->number) ? std::uint64_t{1} : 0,
                        replicas->committed(version->number) ? std::uint64_t{1} : 0});
    most_ = std::max<std::size_t>(1, mine.size());
    for (auto* const each : comms) all_reduce_values(*each, Span<std::size_t>(&most_, 1), max, location);
    mine.resize(most_);
    const auto all = gathered(comm, mine, location);
    auto everywhere = all;
    for (std::size_t i = 1; i < comms.size(); ++i) everywhere = gathered(*comms[i], everywhere, location);
    // A first version that no rank has committed is of a training that has not begun on all ranks.
    if (std::all_of(everywhere.begin(), everywhere.end(),
                    [](const Record& record) { return record.version <= 1 && record.committed == 0; })) {
      kept.clear();
      return;
    }
    lost_ = "the surviving ranks have no common version of the state";
    for (auto key = newest(everywhere, {UINT64_MAX, UINT64_MAX}); key.first != 0; key = newest(everywhere, key)) {
      const auto found = std::find_if(kept.begin(), kept.end(), [&](const auto& replicas) {
        return replicas->layout().ranks() == key.second && version_of(*replicas, key.first) != nullptr;
      });
      replicas_ = found == kept.end() ? nullptr : found->get();
      describe(comm, key, all, state, location);
      unsigned lost = choose(all, key) ? 0 : 1, lost_somewhere = lost;
      for (std::size_t i = 1; i < comms.size(); ++i)
        all_reduce_values(*comms[i], Span<unsigned>(&lost_somewhere, 1), max, location);
      if (lost_somewhere == 0) {
        std::erase_if(kept, [&](const auto& replicas) { return replicas.get() != replicas_; });
        lost_.clear();
        return;
      }
      if (lost == 0) lost_ = "shares of other parts of the model are lost with all ranks that held them";
    }
  }

  /// @throws CheckpointError on every rank if there are copies but no such version, with the parameters that are lost
  void check(const ErrorContext& context) const {
    if (!lost_.empty()) throw CheckpointError(lost_ + "; resume from the last checkpoint", context);
  }
  [[nodiscard]] bool found() const noexcept { return from_.has_value(); }
  /// @pre found()
  [[nodiscard]] const typename Replicas<Space>::Version& version() const noexcept { return version_; }

  /// Copies the version into the state of the training on these ranks. Collective. @pre found()
  void copy_to(AnyCommunicator<Space>& comm, const TrainingState<Space>& state, const here& location) const {
    const StateLayout& from = *from_;
    const StateLayout to(comm, state, false, location);
    const auto ranks = static_cast<std::size_t>(comm.size()), self = static_cast<std::size_t>(comm.rank());
    std::vector<std::size_t> sent(ranks), received(ranks);
    std::size_t sent_bytes = 0, received_bytes = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      sent_bytes += sent[rank] = bytes_moved(to, self, rank);
      received_bytes += received[rank] = bytes_moved(to, rank, self);
    }
    const Buffer<std::byte, Space> out(sent_bytes, uninitialized), in(received_bytes, uninitialized);
    const typename Space::stream after{};
    std::size_t at = 0;
    const auto part = [&](const StateRange& whole, const StateRange& range, std::size_t array) {
      return StateRange{(range.begin - whole.begin) * from.width(array), range.size * from.width(array)};
    };
    for (std::size_t target = 0; target < ranks; ++target)
      each_moved(to, self, target, [&](std::size_t old, std::size_t array, const StateRange& range) {
        const auto [begin, size] = part(from.range(old, array), range, array);
        copy(after, out.span().subspan(at, size), replicas_->values(version_.number, old, array).subspan(begin, size));
        at += size;
      });
    after.synchronize();
    all_to_all(comm, out.span(), in.span(), sent, received, location);
    at = 0;
    for (std::size_t source = 0; source < ranks; ++source)
      each_moved(to, source, self, [&](std::size_t, std::size_t array, const StateRange& range) {
        const auto [begin, size] = part(to.range(self, array), range, array);
        copy(after, bytes_of(state.arrays[array].values).subspan(begin, size), in.span().subspan(at, size));
        at += size;
      });
    after.synchronize();
  }

 private:
  /// A version that a rank has.
  struct Record {
    std::uint64_t version = 0, rank = 0, ranks = 0, holds = 0, committed = 0;
  };

  /// Calls f(old rank, array, range) for all that new rank `source` sends to new rank `target`.
  template <class F>
  void each_moved(const StateLayout& to, std::size_t source, std::size_t target, F&& f) const {
    for (std::size_t old = 0; old < from_->ranks(); ++old) {
      if (sources_[old] != source) continue;
      for (std::size_t array = 0; array < from_->arrays(); ++array)
        if (const auto common = from_->range(old, array) & to.range(target, array); common.size > 0)
          f(old, array, common);
    }
  }
  [[nodiscard]] std::size_t bytes_moved(const StateLayout& to, std::size_t source, std::size_t target) const {
    std::size_t bytes = 0;
    each_moved(to, source, target, [&](std::size_t, std::size_t array, const StateRange& range) {
      bytes += range.size * from_->width(array);
    });
    return bytes;
  }
  /// The number of a version, and of the ranks that made it.
  using Key = std::pair<std::uint64_t, std::uint64_t>;

  [[nodiscard]] static std::vector<Record> gathered(AnyCommunicator<Space>& comm, const std::vector<Record>& mine,
                                                    const here& location) {
    std::vector<Record> all(mine.size() * static_cast<std::size_t>(comm.size()));
    if (comm.size() == 1) return mine;
    all_gather_values(comm, Span<const Record>(mine), Span<Record>(all), location);
    return all;
  }
  [[nodiscard]] static const typename Replicas<Space>::Version* version_of(const Replicas<Space>& replicas,
                                                                           std::uint64_t number) {
    for (const auto* version : replicas.versions())
      if (version->number == number) return version;
    return nullptr;
  }
  /// Returns the newest version before `bound` that all ranks with any copies have; zeros if there is none.
  [[nodiscard]] Key newest(const std::vector<Record>& all, const Key& bound) const {
    Key found{};
    for (const Record& candidate : all) {
      const Key key{candidate.version, candidate.ranks};
      if (key <= found || key >= bound) continue;
      bool everywhere = true;
      for (std::size_t at = 0; at < all.size(); at += most_)
        everywhere =
            everywhere && (all[at].version == 0 || std::any_of(&all[at], &all[at] + most_, [&](const Record& record) {
                             return Key{record.version, record.ranks} == key;
                           }));
      if (everywhere) found = key;
    }
    return found;
  }
  /// Receives from the first rank that has a version what all must know of it.
  void describe(AnyCommunicator<Space>& comm, const Key& key, const std::vector<Record>& all,
                const TrainingState<Space>& state, const here& location) {
    const auto first = std::find_if(all.begin(), all.end(),
                                    [&](const Record& record) { return Key{record.version, record.ranks} == key; });
    root_ = static_cast<std::size_t>(first - all.begin()) / most_;
    const auto ranks = static_cast<std::size_t>(key.second);
    constexpr std::size_t fixed = 5;
    version_ = {key.first, 0, state.counters};
    auto& [updates, loss_scale, finite_steps, skipped_steps] = version_.counters;
    std::vector<std::uint64_t> numbers(fixed + updates.size() + 2 * ranks * state.arrays.size());
    if (static_cast<std::size_t>(comm.rank()) == root_) {
      version_ = *version_of(*replicas_, key.first);
      numbers = {replicas_->whole() ? std::uint64_t{1} : 0, static_cast<std::uint64_t>(version_.steps),
                 std::bit_cast<std::uint64_t>(loss_scale), finite_steps, skipped_steps};
      for (const auto& [name, count] : updates) numbers.push_back(count);
      const auto& ranges = replicas_->layout().numbers();
      numbers.insert(numbers.end(), ranges.begin(), ranges.end());
    }
    if (comm.size() > 1) all_reduce_values(comm, Span<std::uint64_t>(numbers), max, location);  // zeros elsewhere
    whole_ = numbers[0] != 0;
    version_.steps = static_cast<std::int64_t>(numbers[1]);
    loss_scale = std::bit_cast<double>(numbers[2]);
    finite_steps = numbers[3];
    skipped_steps = numbers[4];
    auto next = numbers.begin() + fixed;
    for (auto& [name, count] : updates) count = *next++;
    from_.emplace(state, ranks, std::vector<std::size_t>(next, numbers.end()));
  }
  /// Finds where each rank's shares are; if some are lost, says which.
  bool choose(const std::vector<Record>& all, const Key& key) {
    if (root_ * most_ == all.size()) {  // only other parts of the model have it
      lost_ = "no surviving rank has a copy of this rank's part of the model";
      return false;
    }
    const StateLayout& layout = *from_;
    constexpr std::size_t nowhere = SIZE_MAX;
    std::vector<std::size_t> holders(layout.ranks(), nowhere);
    sources_.assign(layout.ranks(), nowhere);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (Key{all[i].version, all[i].ranks} != key) continue;
      sources_[all[i].rank] = i / most_;
      if (all[i].holds != 0) holders[all[i].rank] = i / most_;
    }
    if (whole_) {  // all of it from one rank, so that all have the same
      for (auto& source : sources_) source = source == root_ ? root_ : nowhere;
      return true;
    }
    std::string names, ranks;
    for (std::size_t rank = 0; rank < layout.ranks(); ++rank) {
      if (sources_[rank] != nowhere) continue;
      const std::size_t holder = Replicas<Space>::holder_of(rank, layout.ranks());
      sources_[rank] = holders[holder];
      if (sources_[rank] != nowhere || layout.bytes(rank) == 0) continue;
      ranks +=
          (ranks.empty() ? "" : " and ") + std::to_string(rank) + ", which rank " + std::to_string(holder) + " held,";
      for (std::size_t array = 0; array < layout.arrays(); ++array)
        if (layout.range(rank, array).size > 0) names += (names.empty() ? "'" : ", '") + layout.name(array) + "'";
    }
    if (names.empty()) return true;
    lost_ = "the shares of rank " + ranks + " are lost with both ranks: parts of " + names;
    return false;
  }

  std::size_t most_ = 0;                       // versions of a rank
  std::string lost_{};                         // why no version can be chosen; empty without copies too
  const Replicas<Space>* replicas_ = nullptr;  // of the version; null on a rank that joins
  typename Replicas<Space>::Version version_{};
  std::optional<StateLayout> from_{};  // of the version
  bool whole_ = false;
  std::size_t root_ = 0;              // the first rank that has the version
  std::vector<std::size_t> sources_;  // of each earlier rank's shares: the new rank that has them
};

}  // namespace distx::inline DISTX_ABI::detail
