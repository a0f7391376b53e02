// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/shm/detail/arena.hpp"

namespace distx::shm {

/// One `allocate`, step by step; between the steps every rank learns what the others have.
class Allocation {
 public:
  Allocation(const std::shared_ptr<shared_memory::Arena>& arena, const RankOf& self)
      : arena_(std::static_pointer_cast<SegmentArena>(arena)), self_(self) {}

  struct Request {
    std::uint64_t count = 0;
    std::uint64_t width = 0;
  };

  /// @throws MismatchError, on every rank, where they ask for different things; MemoryError where it is too much
  void agree(const Request& mine, const std::vector<Request>& all) {
    const ErrorContext context{
        .operation = "allocate", .backend = self_.backend, .rank = self_.rank, .size = self_.size};
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      if (all[rank].count != mine.count || all[rank].width != mine.width)
        throw MismatchError("rank " + std::to_string(rank) + " asks for " + std::to_string(all[rank].count) +
                                " elements of " + std::to_string(all[rank].width) + " bytes, this rank for " +
                                std::to_string(mine.count) + " of " + std::to_string(mine.width),
                            context);
    if (mine.count > largest / mine.width / all.size())
      throw MemoryError("no shared memory for " + std::to_string(mine.count) + " elements of " +
                            std::to_string(mine.width) + " bytes on each rank",
                        context);
    bytes_ = mine.count * mine.width;
    stride_ = (bytes_ + page - 1) / page * page + shift;
  }
  /// The first rank makes the segment.
  [[nodiscard]] SegmentName make() {
    if (self_.rank != 0) return {};
    made_ = Segment::make(page + stride_ * static_cast<std::size_t>(self_.size));
    auto* const head = new (made_.segment->data()) SharedTable::Head;
    head->users.store(static_cast<std::uint32_t>(self_.size), std::memory_order_release);
    return made_.name;
  }
  /// Every rank maps it, and takes its part.
  void find(const SegmentName& name) {
    segment_ = Segment::find(name);
    own_ = segment_->data() + page + stride_ * static_cast<std::size_t>(self_.rank);
    populate();
  }
  /// Owns this rank's part; to be called when all ranks have found theirs.
  [[nodiscard]] std::shared_ptr<void> owner() {
    const auto number = arena_->shared.add(segment_, own_, bytes_);
    return {own_, [arena = arena_, number](void*) { arena->shared.drop(number); }};
  }

 private:
  static constexpr std::size_t page = 4096;
  /// Parts that began alike within a page would make the processor take a load from one for a store to another.
  static constexpr std::size_t shift = 17 * alignment_bytes;
  static constexpr std::size_t largest = std::size_t{1} << 62;

  /// Has the system find the memory now, where it can: a lack of it is an error here, and a signal later.
  void populate() const {
    const auto begin = reinterpret_cast<std::uintptr_t>(own_) / page * page;
    const auto end = (reinterpret_cast<std::uintptr_t>(own_) + bytes_ + page - 1) / page * page;
    constexpr int populate_write = 23;  // since Linux 5.14; older systems refuse it as unknown
    if (bytes_ != 0 && ::madvise(reinterpret_cast<void*>(begin), end - begin, populate_write) != 0 && errno != EINVAL)
      throw MemoryError(
          "no shared memory for " + std::to_string(bytes_) + " bytes on each rank: " + std::strerror(errno),
          {.operation = "allocate", .backend = self_.backend, .rank = self_.rank, .size = self_.size}, errno);
  }

  std::shared_ptr<SegmentArena> arena_;
  RankOf self_;
  std::size_t bytes_ = 0;
  std::size_t stride_ = 0;
  Segment::Made made_;
  std::shared_ptr<Segment> segment_;
  std::byte* own_ = nullptr;
};

}  // namespace distx::shm
