// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "distx/core/detail/fnv1a.hpp"
#include "distx/core/detail/made_here.hpp"
#include "distx/observe/detail/flight_ring.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The largest communicator that a thread has made.
struct FlightWorld {
  int rank = 0;
  int size = 0;
  std::uint64_t generation = 0;  ///< of the registry
  int named = 0;                 ///< communicators that this thread has named
};

/// The contents of the dumps of one rank.
struct FlightDump {
  int rank = 0;
  int size = 0;
  bool ended = false;  ///< the process has destroyed all communicators
  std::string error{};
  std::vector<FlightGroup> groups{};
  std::vector<FlightEntry> entries{};  ///< the oldest first
};

/// The rings and groups of a process. Everything here is off the hot path.
///
/// Ranks may be processes or threads. A rank's number in the world is that in the largest communicator that its thread
/// has made. When the first communicator of a process is made, or the first one after all were destroyed, the records
/// are cleared.
class FlightRegistry {
 public:
  /// Returns the registry of the process. It is never destroyed: threads may outlive static objects. A forked process
  /// begins with an empty one, whose locks no thread of its parent holds.
  static FlightRegistry& get() {
    static std::atomic<FlightRegistry*> registry = new FlightRegistry;
    FlightRegistry* known = registry.load();
    if (known->made_.is_here()) [[likely]]
      return *known;
    auto* const own = new FlightRegistry(*known);
    if (registry.compare_exchange_strong(known, own)) return *own;
    delete own;
    return *known;
  }

  /// A communicator was made by this thread.
  void opened(FlightGroup& group) {
    const std::lock_guard lock(mutex_);
    if (communicators_++ == 0) clear();
    if (world_.generation != generation_) world_ = {0, 0, generation_, 0};
    if (group.size > world_.size) world_.rank = group.rank, world_.size = group.size;
    group.world_rank = world_.rank;
    group.world_size = world_.size;
  }
  /// A communicator was destroyed. Returns whether it was the last one.
  bool closed() noexcept {
    const std::lock_guard lock(mutex_);
    return --communicators_ == 0;
  }
  /// Names a communicator that was not split from another one; called at its first call, in one order on all ranks.
  void name_root(FlightGroup& group) {
    const std::lock_guard lock(mutex_);
    if (group.id != 0) return;  // by another thread
    if (world_.generation == generation_ && world_.size > group.world_size) {
      group.world_rank = world_.rank;
      group.world_size = world_.size;
    }
    group.join_world();
    if (world_.generation != generation_) world_ = {0, 0, generation_, 0};
    add(group, std::to_string(world_.named++));
  }
  /// @param members  the ranks in the world, empty if unknown
  void name_split(FlightGroup& group, const FlightGroup& parent, std::uint64_t split, int color,
                  std::vector<int> members) {
    const std::lock_guard lock(mutex_);
    group.world_rank = parent.world_rank;
    group.world_size = parent.world_size;
    group.members = std::move(members);
    add(group, parent.name + "/" + std::to_string(split) + "." + std::to_string(color));
  }

  /// Gives this thread a ring, until the thread ends, unless it has one.
  void attach() {
    struct Attached {
      ~Attached() {
        FlightRegistry& registry = get();
        const std::lock_guard lock(registry.mutex_);
        if (registry.owns(flight_ring)) registry.idle_.push_back(flight_ring);
        flight_ring = nullptr;
      }
    };
    const std::lock_guard lock(mutex_);
    if (owns(flight_ring)) return;
    if (idle_.empty()) {
      idle_.reserve(rings_.size() + 1);  // so that an ending thread does not allocate
      idle_.push_back(rings_.emplace_back(std::make_unique<FlightRing>()).get());
    }
    flight_ring = idle_.back();
    idle_.pop_back();
    static thread_local const Attached attached;
    static_cast<void>(&attached);
  }

  void configure(bool enabled, const std::string& folder, bool on_signal) {
    const std::lock_guard lock(mutex_);
    flight_enabled = enabled;
    folder_ = folder;
    on_signal_ = on_signal;
  }
  /// Returns where errors and signals write the records; empty if they do not.
  [[nodiscard]] std::string folder() const {
    const std::lock_guard lock(mutex_);
    return folder_;
  }
  /// Returns the lock under which files are written.
  [[nodiscard]] std::mutex& writing() noexcept { return writing_; }
  [[nodiscard]] bool on_signal() const {
    const std::lock_guard lock(mutex_);
    return on_signal_;
  }

  void note_error(int world_rank, const char* text) {
    const std::lock_guard lock(mutex_);
    errors_.try_emplace(world_rank, text);  // the first one is the cause
  }

  /// Returns the records, by rank.
  [[nodiscard]] std::vector<FlightDump> dumps() const {
    const std::lock_guard lock(mutex_);
    std::vector<FlightDump> all;
    int size = 0;
    for (const FlightGroup& group : groups_) size = std::max(size, group.world_size);
    for (const FlightGroup& group : groups_)
      if (group.world_size == size) dump_of(all, group.world_rank).size = size;
    for (FlightDump& dump : all) dump.ended = communicators_ == 0;
    for (const FlightGroup& group : groups_)
      if (FlightDump* const dump = dump_with(all, group)) dump->groups.push_back(group);
    for (const auto& ring : rings_) add_entries(*ring, all);
    for (const auto& [rank, error] : errors_)
      for (FlightDump& dump : all)
        if (dump.rank == rank) dump.error = error;
    for (FlightDump& dump : all) complete_in_stream_order(dump.entries);
    return all;
  }

 private:
  static constexpr std::size_t most_groups = 4096;

  FlightRegistry() {
    const char* const setting = std::getenv("DISTX_FLIGHT_RECORDER");
    if (setting != nullptr && std::string_view(setting) == "off") flight_enabled = false;
    if (const char* const folder = std::getenv("DISTX_FLIGHT")) folder_ = folder;
    const char* const signal = std::getenv("DISTX_FLIGHT_SIGNAL");
    on_signal_ = signal != nullptr && std::string_view(signal) == "on";
  }

  /// The registry of a process forked from that of `parent`. The files of ranks that run there remain theirs.
  explicit FlightRegistry(const FlightRegistry& parent)
      : folder_(parent.communicators_ == 0 ? parent.folder_ : std::string()),
        on_signal_(parent.on_signal_),
        generation_(parent.generation_) {}

  /// @pre the mutex is held
  [[nodiscard]] bool owns(const FlightRing* ring) const noexcept {
    return std::any_of(rings_.begin(), rings_.end(), [&](const auto& own) { return own.get() == ring; });
  }
  void clear() noexcept {
    ++generation_;
    groups_.clear();
    errors_.clear();
    for (const auto& ring : rings_) ring->clear();
  }
  void add(FlightGroup& group, std::string name) {
    group.name = std::move(name);
    group.id = fnv1a(std::string_view(group.name));
    groups_.push_back(group);
    if (groups_.size() > most_groups) groups_.erase(groups_.begin());
  }
  static FlightDump& dump_of(std::vector<FlightDump>& all, int rank) {
    for (FlightDump& dump : all)
      if (dump.rank == rank) return dump;
    all.emplace_back().rank = rank;
    return all.back();
  }
  /// Returns the dump that contains a group. One that was made before this rank's number in the world was known belongs
  /// to the only rank of the process; null if there are several.
  static FlightDump* dump_with(std::vector<FlightDump>& all, const FlightGroup& group) {
    if (all.size() == 1) return &all.front();
    for (FlightDump& dump : all)
      if (dump.rank == group.world_rank && dump.size == group.world_size) return &dump;
    return nullptr;
  }
  [[nodiscard]] FlightDump* dump_with(std::vector<FlightDump>& all, const FlightCall& call) const {
    for (const FlightGroup& group : groups_)
      if (group.id == call.group && group.world_rank == call.world_rank) return dump_with(all, group);
    return nullptr;
  }
  /// Adds the records of a ring, the oldest first, and merges them by time with those of other rings.
  void add_entries(const FlightRing& ring, std::vector<FlightDump>& all) const {
    const auto& records = ring.records();
    std::size_t newest = 0;
    for (std::size_t i = 0; i < records.size(); ++i)
      if (records[i].number() > records[newest].number()) newest = i;
    const std::uint64_t last = records[newest].number();
    std::int64_t latest = 0;
    FlightEntry one;
    for (std::size_t i = 1; i <= records.size(); ++i) {
      if (!records[(newest + i) % records.size()].read(one) || one.number > last) continue;
      // A call whose time is unknown is not before the previous one.
      one.not_before = latest = std::max(latest, one.enqueued != 0 ? one.enqueued : one.started);
      if (!one.call.asynchronous) latest = std::max(latest, one.completed);
      FlightDump* const dump = dump_with(all, one.call);
      if (dump == nullptr) continue;
      auto& entries = dump->entries;
      auto place = entries.end();
      while (place != entries.begin() && place[-1].not_before > one.not_before) --place;
      entries.insert(place, one);
    }
  }
  /// Marks a call as completed if it is followed in its stream's order by a completed one.
  static void complete_in_stream_order(std::vector<FlightEntry>& entries) {
    for (std::size_t i = entries.size(); i-- > 0;) {
      FlightEntry& entry = entries[i];
      for (std::size_t later = i + 1; later < entries.size() && entry.call.stream_ordered; ++later) {
        if (entries[later].call.group != entry.call.group || !entries[later].call.stream_ordered) continue;
        if (entries[later].progress == FlightProgress::completed) entry.progress = FlightProgress::completed;
        break;
      }
    }
  }

  inline static thread_local constinit FlightWorld world_{};

  MadeHere made_;
  mutable std::mutex mutex_;
  std::mutex writing_;
  std::vector<std::unique_ptr<FlightRing>> rings_;
  std::vector<FlightRing*> idle_;
  std::vector<FlightGroup> groups_;
  std::map<int, std::string> errors_;  // by rank in the world
  std::string folder_;
  bool on_signal_ = false;
  std::uint64_t communicators_ = 0;
  std::uint64_t generation_ = 0;
};

}  // namespace distx::inline DISTX_ABI::detail
