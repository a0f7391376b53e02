// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <atomic>
#include <mutex>
#include <vector>

#include "distx/comm/shared_memory/shared_layout.hpp"
#include "distx/core/detail/made_here.hpp"
#include "distx/shm/detail/segment.hpp"

namespace distx::inline DISTX_ABI::detail::shm {

/// The allocations of one communicator as mapped by one rank: each is one segment with a part per rank.
///
/// A rank that frees its part still maps those of its peers: the segment is freed when all ranks have freed their
/// parts.
class SharedTable {
 public:
  struct Head {
    std::atomic<std::uint32_t> users{0};  // ranks that still hold their part
  };

  /// Adds an allocation. Allocations are numbered from 1, equally on all ranks, because allocating is collective.
  /// @param own     where this rank uses its part, which is `offset` bytes into the segment
  /// @param adopts  whether the part replaces private pages, which `drop` puts back
  std::uint64_t add(std::shared_ptr<SharedSegment> segment, std::byte* own, std::size_t bytes, std::size_t offset,
                    bool adopts) {
    const std::lock_guard lock(mutex_);
    sweep();
    entries_.push_back({++last_, std::move(segment), own, bytes, offset, true, adopts});
    count_.store(entries_.size(), std::memory_order_relaxed);
    return last_;
  }
  /// Releases this rank's part. A forked process leaves it to the rank.
  void drop(std::uint64_t number) noexcept {
    if (!made_.is_here()) return;
    const std::lock_guard lock(mutex_);
    for (TableEntry& entry : entries_) {
      if (entry.number != number) continue;
      // If the system lacks memory for private copies, the pages keep their contents, and no other rank uses them.
      if (entry.adopts && !entry.is_private) static_cast<void>(make_private(entry.own, entry.bytes));
      entry.held = false;
      ++dropped_;
      head(entry).users.fetch_sub(1, std::memory_order_acq_rel);
    }
    sweep();
  }
  [[nodiscard]] SharedAddress address_of(const void* memory, std::size_t bytes) noexcept {
    if (count_.load(std::memory_order_relaxed) == 0) return {};
    const std::lock_guard lock(mutex_);
    if (dropped_ != 0) sweep();
    const auto* const begin = static_cast<const std::byte*>(memory);
    for (const TableEntry& entry : entries_)
      if (entry.held && begin >= entry.own && begin + bytes <= entry.own + entry.bytes)
        return {entry.number, entry.offset + static_cast<std::uint64_t>(begin - entry.own)};
    return {};
  }
  [[nodiscard]] std::byte* at(const SharedAddress& place) noexcept {
    if (place.segment == 0) return nullptr;
    const std::lock_guard lock(mutex_);
    for (const TableEntry& entry : entries_)
      if (entry.number == place.segment) return entry.segment->data() + place.offset;
    return nullptr;
  }
  /// Replaces this rank's parts by private copies at the same addresses, so that other processes neither read nor write
  /// them. Returns false if there is not enough memory. @pre no thread of this process writes to them
  [[nodiscard]] bool detach() noexcept {
    const std::lock_guard lock(mutex_);
    for (TableEntry& entry : entries_) {
      if (!entry.held || entry.is_private || entry.bytes == 0) continue;
      if (!make_private(entry.own, entry.bytes)) return false;
      entry.is_private = true;
    }
    return true;
  }

 private:
  struct TableEntry {
    std::uint64_t number;
    std::shared_ptr<SharedSegment> segment;
    std::byte* own;
    std::size_t bytes;
    std::size_t offset;
    bool held;
    bool adopts;
    bool is_private = false;
  };
  static Head& head(const TableEntry& entry) noexcept {
    return *std::launder(reinterpret_cast<Head*>(entry.segment->data()));
  }
  void sweep() noexcept {
    const auto gone = std::erase_if(
        entries_, [](const TableEntry& e) { return !e.held && head(e).users.load(std::memory_order_acquire) == 0; });
    dropped_ -= gone;
    count_.store(entries_.size(), std::memory_order_relaxed);
  }

  MadeHere made_;
  std::mutex mutex_;
  std::vector<TableEntry> entries_;
  std::atomic<std::size_t> count_{0};
  std::size_t dropped_ = 0;
  std::uint64_t last_ = 0;
};

}  // namespace distx::inline DISTX_ABI::detail::shm
