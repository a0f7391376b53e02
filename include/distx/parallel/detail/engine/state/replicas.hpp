// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>

#include "distx/comm/detail/host_values.hpp"
#include "distx/comm/detail/in_order.hpp"
#include "distx/parallel/detail/memory/tracked_memory.hpp"
#include "distx/parallel/training_state.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The elements of an array from `begin` on.
struct StateRange {
  std::size_t begin = 0;
  std::size_t size = 0;

  [[nodiscard]] friend StateRange operator&(const StateRange& a, const StateRange& b) noexcept {
    const std::size_t first = std::max(a.begin, b.begin), last = std::min(a.begin + a.size, b.begin + b.size);
    return {first, last > first ? last - first : 0};
  }
};

/// The elements that each rank has of the arrays of a training's state.
class StateLayout {
 public:
  /// Collects what all ranks hold, or their shares, which partition the arrays. Collective.
  template <MemorySpace Space>
  StateLayout(AnyCommunicator<Space>& comm, const TrainingState<Space>& state, bool shares,
              const std::source_location& location)
      : StateLayout(state, static_cast<std::size_t>(comm.size()), {}) {
    std::vector<std::size_t> mine;
    for (const auto& array : state.arrays) {
      mine.push_back(array.offset + (shares ? array.share_begin : 0));
      mine.push_back(shares ? array.share_size : array.values.size());
    }
    numbers_.assign(mine.size() * ranks_, 0);
    if (ranks_ == 1)
      numbers_ = std::move(mine);
    else if (!mine.empty())
      all_gather_values(comm, Span<const std::size_t>(mine), Span<std::size_t>(numbers_), location);
  }

  /// Describes what other ranks had of the same arrays. @param numbers  as `numbers()` returns them
  template <MemorySpace Space>
  StateLayout(const TrainingState<Space>& state, std::size_t ranks, std::vector<std::size_t> numbers)
      : ranks_(ranks), numbers_(std::move(numbers)) {
    for (const auto& array : state.arrays) {
      names_.push_back(array.name);
      widths_.push_back(array.values.element_bytes());
    }
  }

  /// Returns begin and size of each range, by rank and array.
  [[nodiscard]] const std::vector<std::size_t>& numbers() const noexcept { return numbers_; }
  [[nodiscard]] std::size_t ranks() const noexcept { return ranks_; }
  [[nodiscard]] std::size_t arrays() const noexcept { return names_.size(); }
  [[nodiscard]] const std::string& name(std::size_t array) const noexcept { return names_[array]; }
  /// Returns the bytes of one element.
  [[nodiscard]] std::size_t width(std::size_t array) const noexcept { return widths_[array]; }
  [[nodiscard]] StateRange range(std::size_t rank, std::size_t array) const noexcept {
    const std::size_t at = 2 * (rank * arrays() + array);
    return {numbers_[at], numbers_[at + 1]};
  }
  /// Returns the bytes that a rank has of the arrays before `end`.
  [[nodiscard]] std::size_t bytes_before(std::size_t rank, std::size_t end) const noexcept {
    std::size_t bytes = 0;
    for (std::size_t array = 0; array < end; ++array) bytes += range(rank, array).size * width(array);
    return bytes;
  }
  /// Returns the bytes that a rank has.
  [[nodiscard]] std::size_t bytes(std::size_t rank) const noexcept { return bytes_before(rank, arrays()); }

 private:
  std::size_t ranks_;
  std::vector<std::string> names_;
  std::vector<std::size_t> widths_;
  std::vector<std::size_t> numbers_;
};

/// The communicators of a training with copies: of the ranks that shard, and those along the other axes of its mesh and
/// along the pipeline, if it has some. Together they connect all ranks.
template <MemorySpace Space>
using ReplicaCommunicators = std::vector<AnyCommunicator<Space>*>;

/// Copies of a training's state between steps, from which it continues on other ranks.
///
/// At stages 1 to 3 each rank copies its shares and those of the rank before it; at stage 0 all that it holds, which is
/// the whole state. A commit makes the present state a version: it replaces the one before once all ranks have sent
/// their shares, so at any time every version that some rank has completed can be found on all ranks.
template <MemorySpace Space>
class Replicas {
 public:
  using stream = typename Space::stream;
  using here = std::source_location;

  /// The shares of one rank, packed in the order of the arrays.
  struct Image {
    std::uint64_t version = 0;  ///< 0: none, or incomplete
    TrackedMemory<Space> memory{};
  };
  /// A state of the training after a number of steps.
  struct Version {
    std::uint64_t number = 0;
    std::int64_t steps = 0;
    TrainingCounters counters{};
  };

  /// Allocates the copies. Collective.
  /// @param whole  whether every rank holds the whole state
  /// @param last  the number of the version before the first one
  /// @throws MemoryError
  Replicas(AnyCommunicator<Space>& comm, const TrainingState<Space>& state, bool whole, std::uint64_t last,
           const std::shared_ptr<MemoryAccount>& account, const here& location)
      : layout_(comm, state, !whole, location),
        rank_(static_cast<std::size_t>(comm.rank())),
        whole_(whole || comm.size() == 1),
        last_(last),
        account_(account) {
    own_.memory = allocate(layout_.bytes(rank_));
    if (whole_) return;
    for (auto& image : held_) image.memory = allocate(layout_.bytes(before()));
    for (std::size_t rank = 0; rank < layout_.ranks(); ++rank)
      rounds_ = std::max(rounds_, (layout_.bytes(rank) + chunk - 1) / chunk);
    chunk_ = allocate(std::min(chunk, layout_.bytes(rank_)));
  }
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;

  [[nodiscard]] const StateLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] std::size_t rank() const noexcept { return rank_; }
  [[nodiscard]] bool whole() const noexcept { return whole_; }

  /// Makes the state, after `steps` steps, the next version. Collective over all of `comms`.
  void commit(const ReplicaCommunicators<Space>& comms, const TrainingState<Space>& state, std::int64_t steps,
              stream after, const here& location) {
    // A step that is only enqueued continues with half-averaged gradients if the communicator is revoked meanwhile.
    if constexpr (!done_at_return<Space>) await_all(comms, after, location);
    live_ = {++last_, steps, state.counters};
    const auto shares = shares_of(state);
    if (!whole_) exchange(*comms.front(), shares, after, location);
    await_all(comms, after, location);
    next_ = 1 - next_;
    own_.version = 0;
    pack(shares, own_.memory->span(), 0, after);
    after.synchronize();
    committed_ = std::move(live_);
    own_.version = committed_.number;
    live_ = {};
  }
  /// Whether a commit has failed, after which `capture` is to be called before the training ends.
  [[nodiscard]] bool interrupted() const noexcept { return live_.number != 0; }
  /// Keeps the state, which was complete when a commit failed. Local. @pre interrupted()
  void capture(const TrainingState<Space>& state, stream after) {
    fresh_.memory = allocate(layout_.bytes(rank_));
    pack(shares_of(state), fresh_.memory->span(), 0, after);
    after.synchronize();
    fresh_.version = live_.number;
  }

  /// Returns the versions that this rank has.
  [[nodiscard]] std::vector<const Version*> versions() const {
    std::vector<const Version*> all;
    if (own_.version != 0) all.push_back(&committed_);
    if (fresh_.version != 0) all.push_back(&live_);
    return all;
  }
  [[nodiscard]] bool committed(std::uint64_t version) const noexcept { return own_.version == version; }
  [[nodiscard]] bool holds(std::uint64_t version) const noexcept {
    return held_[0].version == version || held_[1].version == version;
  }
  /// Returns the copy of an array in a version.
  /// @param rank  this one, or the one before it
  [[nodiscard]] Span<const std::byte, Space> values(std::uint64_t version, std::size_t rank, std::size_t array) const {
    const Image& mine = own_.version == version ? own_ : fresh_;
    const Image& image = rank == rank_ ? mine : held_[held_[0].version == version ? 0 : 1];
    return image.memory->span().subspan(layout_.bytes_before(rank, array),
                                        layout_.range(rank, array).size * layout_.width(array));
  }
  /// Returns the rank, of `ranks`, that holds another one's shares.
  [[nodiscard]] static std::size_t holder_of(std::size_t rank, std::size_t ranks) noexcept {
    return (rank + 1) % ranks;
  }

 private:
  static constexpr std::size_t chunk = std::size_t{1} << 20;  // bytes of one message
  using Shares = std::vector<Span<const std::byte, Space>>;

  [[nodiscard]] TrackedMemory<Space> allocate(std::size_t bytes) const {
    return allocate_tracked_local<Space>(account_, observe::MemoryKind::replicas, bytes, uninitialized);
  }
  /// Returns after all ranks have entered this call: those of one communicator after those of the one before.
  static void await_all(const ReplicaCommunicators<Space>& comms, stream after, const here& location) {
    for (auto* const comm : comms)
      if (comm->size() > 1) execute_after(*comm, calls::Barrier<Space>{location}, after);
  }
  [[nodiscard]] std::size_t before() const noexcept { return (rank_ + layout_.ranks() - 1) % layout_.ranks(); }

  [[nodiscard]] Shares shares_of(const TrainingState<Space>& state) const {
    Shares shares;
    for (std::size_t i = 0; i < state.arrays.size(); ++i) {
      const auto& array = state.arrays[i];
      const auto range = layout_.range(rank_, i);
      const std::size_t width = layout_.width(i);
      if (range.size > 0)
        shares.emplace_back(array.values.bytes() + (range.begin - array.offset) * width, range.size * width);
    }
    return shares;
  }
  /// Copies the bytes of the shares from `begin` on, until `to` is full.
  static void pack(const Shares& shares, Span<std::byte, Space> to, std::size_t begin, stream after) {
    std::size_t at = 0;  // of the share
    for (const auto& share : shares) {
      const auto common = StateRange{at, share.size()} & StateRange{begin, to.size()};
      if (common.size > 0)
        copy(after, to.subspan(common.begin - begin, common.size), share.subspan(common.begin - at, common.size));
      at += share.size();
    }
  }
  /// Sends this rank's shares to the next rank, and receives those of the rank before it.
  void exchange(AnyCommunicator<Space>& comm, const Shares& shares, stream after, const here& location) {
    Image& image = held_[next_];
    image.version = 0;
    const auto part = [](std::size_t bytes, std::size_t round) {
      return StateRange{round * chunk, chunk} & StateRange{0, bytes};
    };
    for (std::size_t round = 0; round < rounds_; ++round) {
      const auto sent = part(own_.memory->span().size(), round);
      const auto received = part(image.memory->span().size(), round);
      const auto out = chunk_->span().subspan(0, sent.size);
      pack(shares, out, sent.begin, after);
      const auto in =
          received.size == 0 ? Span<std::byte, Space>() : image.memory->span().subspan(received.begin, received.size);
      execute_after(comm,
                    calls::SendReceive<std::byte, Space>{.send = {out.data(), out.size()},
                                                         .to = static_cast<int>(holder_of(rank_, layout_.ranks())),
                                                         .receive = in,
                                                         .from = static_cast<int>(before()),
                                                         .location = location},
                    after);
    }
    image.version = live_.number;
  }

  StateLayout layout_;
  std::size_t rank_;
  bool whole_;
  std::uint64_t last_;  // version
  std::shared_ptr<MemoryAccount> account_;
  std::size_t rounds_ = 0;
  TrackedMemory<Space> chunk_{};
  Version committed_{}, live_{};  // live_: being committed
  Image own_{}, fresh_{};         // fresh_: of live_, after a failure
  std::array<Image, 2> held_{};   // of the rank before
  std::size_t next_ = 0;          // the one that the next commit writes
};

}  // namespace distx::inline DISTX_ABI::detail
