// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include "distx/comm/shared_memory/shared_layout.hpp"
#include "distx/shm/detail/other_process.hpp"

namespace distx::inline DISTX_ABI::detail::shm {

using namespace shared_memory;

/// One rank's access to the memory of the other ranks' processes that is not shared, in one copy, if the system permits
/// it. Copies return false, with errno, if they fail.
class OtherMemories {
 public:
  OtherMemories(const SharedLayout& control, int rank)
      : control_(control), rank_(rank), written_{Marks(writers()), Marks(writers())} {}

  /// Returns whether this rank copies from the memory of every other one, as far as it has tried. Two ranks do if that
  /// is quick: one of them copies to a buffer while the other copies from it.
  [[nodiscard]] bool reads_all() const noexcept { return reads_all_; }
  void try_reading_all() noexcept {
    if (std::exchange(has_tried_, true) || control_.size() > most_read) return;
    const Access least = control_.size() == 2 ? Access::quick : Access::granted;
    reads_all_ = true;
    for (int other = 0; other < control_.size(); ++other)
      reads_all_ = reads_all_ && (of(other).process == of(rank_).process || try_reach(other) >= least);
  }
  /// Publishes whether this rank can access the memory of another rank's process, and returns it.
  Access try_reach(int other) noexcept {
    Reach& reach = control_.reach(rank_, other);
    if (reach.load(std::memory_order_relaxed) == Access::unknown) {
      const bool granted = reaches(other) && other_process::permits_writes(of(other).process);
      const Access there = other_process::copies_quickly() ? Access::quick : Access::granted;
      reach.store(granted ? there : Access::denied, std::memory_order_relaxed);
    }
    return reach.load(std::memory_order_relaxed);
  }

  /// Copies from another rank. If another process has the number of one that has died, it copies from that one; the
  /// ranks notice that at the end of the call.
  [[nodiscard]] bool read(int other, std::byte* to, const std::byte* from, std::size_t bytes) const noexcept {
    return other_process::read(of(other).process, to, from, bytes);
  }
  /// The same; fails if the process is another one.
  [[nodiscard]] bool read_if(int other, std::byte* to, const std::byte* from, std::size_t bytes) const noexcept {
    return other_process::read_if(of(other).process, of(other).probe, of(other).process_began, to, from, bytes);
  }
  /// Copies to another rank's process; fails if the process is another one.
  [[nodiscard]] bool write_if(int other, std::byte* to, const std::byte* from, std::size_t bytes) const noexcept {
    return reaches(other) && other_process::write(of(other).process, to, from, bytes);
  }
  /// The same, and marks in that rank's process that this rank has completed it in `call`. @pre a WriteGuard exists
  [[nodiscard]] bool write(int other, CallQueue queue, std::byte* to, const std::byte* from, std::size_t bytes,
                           std::uint64_t call) const noexcept {
    std::atomic<std::uint64_t>* const mark = of(other).written[static_cast<std::size_t>(queue)] + rank_;
    return reaches(other) && other_process::write_marked(of(other).process, to, from, bytes, mark, call);
  }
  /// Returns where other ranks mark their writes to memory of this one.
  [[nodiscard]] std::atomic<std::uint64_t>* written(CallQueue queue) noexcept {
    return written_[static_cast<std::size_t>(queue)].data();
  }

  /// Announces to rank `to` that this rank writes to its memory, for the duration of a scope.
  class WriteGuard {
   public:
    WriteGuard(CallSlot& slot, int to, std::uint64_t call) noexcept : slot_(slot) {
      slot.write.store(call, std::memory_order_relaxed);
      slot.writes_to.store(to, std::memory_order_seq_cst);
    }
    WriteGuard(const WriteGuard&) = delete;
    WriteGuard& operator=(const WriteGuard&) = delete;
    ~WriteGuard() { slot_.writes_to.store(-1, std::memory_order_seq_cst); }

   private:
    CallSlot& slot_;
  };

 private:
  using Marks = std::vector<std::atomic<std::uint64_t>>;
  /// The number of ranks up to which each tries to access every other.
  static constexpr int most_read = 64;

  /// Returns how many ranks may write to memory of this one.
  [[nodiscard]] std::size_t writers() const noexcept {
    return control_.size() <= most_read ? static_cast<std::size_t>(control_.size()) : 0;
  }
  [[nodiscard]] const RankBlock& of(int rank) const noexcept { return control_.rank(rank); }
  /// Returns whether this rank can access the memory of another rank's process, and it is that process: another one may
  /// have its number by now.
  [[nodiscard]] bool reaches(int other) const noexcept {
    return other_process::read_if(of(other).process, of(other).probe, of(other).process_began, nullptr, nullptr, 0);
  }

  const SharedLayout& control_;
  int rank_;
  bool has_tried_ = false, reads_all_ = false;
  std::array<Marks, 2> written_;  // by queue and rank
};

}  // namespace distx::inline DISTX_ABI::detail::shm
