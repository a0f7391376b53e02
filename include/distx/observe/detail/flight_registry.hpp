// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "distx/core/detail/fnv1a.hpp"
#include "distx/observe/detail/flight_ring.hpp"

namespace distx::detail {

/// Whether calls are recorded.
inline constinit std::atomic<bool> flight_enabled{true};

/// A communicator of one rank, as dumps describe it.
struct FlightGroup {
  std::uint64_t id = 0;  ///< hash of the name
  /// Equal on all ranks of the group: "0", or "0/2.1" for color 1 of the second split of group 0.
  std::string name{};
  std::string backend{};
  int rank = 0;
  int size = 0;
  int world_rank = 0;
  int world_size = 0;
  std::vector<int> members{};  ///< the ranks in the world, by rank in the group; empty if unknown

  /// Sets the members of a group that has the ranks of the world.
  void join_world() {
    if (!members.empty() || rank != world_rank || size != world_size) return;
    for (int one = 0; one < size; ++one) members.push_back(one);
  }
};

/// The largest communicator that a thread has made.
struct FlightWorld {
  int rank = 0;
  int size = 0;
  std::uint64_t generation = 0;  ///< of the registry
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
  /// Returns the registry of the process. It is never destroyed: threads may outlive static objects.
  static FlightRegistry& get() {
    static FlightRegistry& registry = *new FlightRegistry;
    return registry;
  }

  /// A communicator was made by this thread.
  void opened(FlightGroup& group) {
    const std::lock_guard lock(mutex_);
    if (communicators_++ == 0) clear();
    if (group.size > world_.size || world_.generation != generation_) world_ = {group.rank, group.size, generation_};
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
    add(group, std::to_string(roots_[group.world_rank]++));
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

  /// Gives this thread a ring, until the thread ends.
  void attach() {
    struct Attached {
      ~Attached() {
        FlightRegistry& registry = get();
        const std::lock_guard lock(registry.mutex_);
        registry.idle_.push_back(std::exchange(flight_ring, nullptr));
      }
    };
    const std::lock_guard lock(mutex_);
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
  [[nodiscard]] bool on_signal() const {
    const std::lock_guard lock(mutex_);
    return on_signal_;
  }

  void note_error(int world_rank, const char* text) {
    const std::lock_guard lock(mutex_);
    errors_.try_emplace(world_rank, text);
  }

  /// Returns the records, by rank.
  [[nodiscard]] std::vector<FlightDump> dumps() const {
    const std::lock_guard lock(mutex_);
    std::map<int, FlightDump> found;
    for (const FlightGroup& group : groups_) {
      FlightDump& dump = found[group.world_rank];
      dump.rank = group.world_rank;
      dump.size = std::max(dump.size, group.world_size);
      dump.groups.push_back(group);
    }
    for (const auto& ring : rings_)
      for (const FlightEntry& entry : entries_of(*ring)) found[entry.call.world_rank].entries.push_back(entry);
    for (const auto& [rank, text] : errors_) found[rank].error = text;
    std::vector<FlightDump> all;
    for (auto& [rank, dump] : found) {
      dump.rank = rank;
      dump.ended = communicators_ == 0;
      order(dump.entries);
      all.push_back(std::move(dump));
    }
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

  void clear() noexcept {
    ++generation_;
    roots_.clear();
    groups_.clear();
    errors_.clear();
    for (const auto& ring : rings_) ring->clear();
  }
  void add(FlightGroup& group, std::string name) {
    group.name = std::move(name);
    group.id = fnv1a(std::string_view(group.name));
    groups_.push_back(group);
    if (groups_.size() > most_groups) groups_.pop_front();
  }
  /// Returns the records of a ring, the oldest first. A call whose time is unknown is not before the previous one.
  static std::vector<FlightEntry> entries_of(const FlightRing& ring) {
    std::vector<FlightEntry> entries;
    FlightEntry entry;
    for (const FlightRecord& record : ring.records())
      if (record.read(entry)) entries.push_back(entry);
    std::sort(entries.begin(), entries.end(),
              [](const FlightEntry& a, const FlightEntry& b) { return a.number < b.number; });
    std::int64_t latest = 0;
    for (FlightEntry& one : entries) {
      one.not_before = latest = std::max(latest, one.enqueued != 0 ? one.enqueued : one.started);
      if (!one.call.asynchronous) latest = std::max(latest, one.completed);
    }
    return entries;
  }
  /// Merges the rings of a rank by time. A call that is followed in its stream's order by a completed one is complete.
  static void order(std::vector<FlightEntry>& entries) {
    std::stable_sort(entries.begin(), entries.end(),
                     [](const FlightEntry& a, const FlightEntry& b) { return a.not_before < b.not_before; });
    std::map<std::uint64_t, bool> completed;
    for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
      if (!entry->call.stream_ordered) continue;
      bool& later = completed[entry->call.group];
      if (later) entry->progress = FlightProgress::completed;
      later = later || entry->progress == FlightProgress::completed;
    }
  }

  inline static thread_local constinit FlightWorld world_{};

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<FlightRing>> rings_;
  std::vector<FlightRing*> idle_;
  std::deque<FlightGroup> groups_;
  std::map<int, int> roots_;
  std::map<int, std::string> errors_;
  std::string folder_;
  bool on_signal_ = false;
  std::uint64_t communicators_ = 0;
  std::uint64_t generation_ = 0;
};

}  // namespace distx::detail
