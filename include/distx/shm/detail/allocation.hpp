// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/shm/detail/available_memory.hpp"
#include "distx/shm/detail/segment_region.hpp"

namespace distx::inline DISTX_ABI::detail::shm {

/// An allocation in a segment that every rank maps, with one part per rank.
class Allocation : public RegionAllocation {
 public:
  Allocation(std::shared_ptr<SegmentRegion> region, const RankOf& self)
      : Allocation(std::move(region), self, "allocate", shift) {}

  void check(const Request& mine, const std::vector<Request>& all) override {
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      if (all[rank].count != mine.count || all[rank].element_bytes != mine.element_bytes)
        throw MismatchError(
            "rank " + std::to_string(rank) + " requests " + text_of(all[rank]) + ", this rank " + text_of(mine),
            context());
    const std::uint64_t available = available_bytes();
    if (mine.count > available / mine.element_bytes / all.size())
      throw MemoryError("cannot allocate shared memory for " + text_of(mine) + " on each of " +
                            std::to_string(all.size()) + " ranks: the system has " + std::to_string(available) +
                            " bytes available",
                        context());
    bytes_ = mine.count * mine.element_bytes;
    stride_ = (bytes_ + page_bytes - 1) / page_bytes * page_bytes + gap_;
  }
  [[nodiscard]] RegionToken make() override {
    if (self_.rank != 0) return {};
    made_ = SharedSegment::make(page_bytes + stride_ * static_cast<std::size_t>(self_.size));
    auto* const head = new (made_.segment->data()) SharedTable::Head;
    head->users.store(static_cast<std::uint32_t>(self_.size), std::memory_order_release);
    return token_of(made_.name);
  }
  void open(const RegionToken& token) override {
    segment_ = SharedSegment::find(name_of(token));
    own_ = segment_->data() + offset();
    SharedSegment::populate(own_, bytes_, context());
  }
  [[nodiscard]] std::shared_ptr<void> owner() override { return owner(false); }

 protected:
  Allocation(std::shared_ptr<SegmentRegion> region, const RankOf& self, std::string_view operation, std::size_t gap)
      : region_(std::move(region)), self_(self), operation_(operation), gap_(gap) {}

  [[nodiscard]] ErrorContext context() const noexcept { return self_.context(operation_); }
  /// Returns where this rank's part begins in the segment.
  [[nodiscard]] std::size_t offset() const noexcept {
    return page_bytes + stride_ * static_cast<std::size_t>(self_.rank);
  }
  [[nodiscard]] std::shared_ptr<void> owner(bool adopts) {
    const auto number = region_->shared.add(segment_, own_, bytes_, offset(), adopts);
    return {own_, [region = region_, number](void*) { region->shared.drop(number); }};
  }

  std::shared_ptr<SegmentRegion> region_;
  RankOf self_;
  std::string_view operation_;
  std::size_t bytes_ = 0;
  std::shared_ptr<SharedSegment> segment_;
  std::byte* own_ = nullptr;

 private:
  /// Staggers the parts: equal offsets within a page would cause false load-store dependencies (4K aliasing).
  static constexpr std::size_t shift = 17 * alignment_bytes;

  [[nodiscard]] static std::string text_of(const Request& request) {
    if (request.element_bytes == 1) return std::to_string(request.count) + " bytes";
    return std::to_string(request.count) + " elements of " + std::to_string(request.element_bytes) + " bytes";
  }

  std::size_t gap_;
  std::size_t stride_ = 0;
  SharedSegment::Made made_;
};

inline std::unique_ptr<RegionAllocation> SegmentRegion::new_allocation(const RankOf& self) {
  return std::make_unique<Allocation>(std::static_pointer_cast<SegmentRegion>(shared_from_this()), self);
}

inline RegionToken SegmentRegion::make_common(std::size_t bytes, const ErrorContext& context,
                                              std::shared_ptr<void>& keep) {
  if (const std::uint64_t available = available_bytes(); bytes > available)
    throw MemoryError("cannot allocate " + std::to_string(bytes) + " bytes of shared memory: the system has " +
                          std::to_string(available) + " bytes available",
                      context, ENOMEM);
  auto made = std::make_shared<SharedSegment::Made>(SharedSegment::make(bytes));
  keep = made;
  return token_of(made->name);
}

inline CommonMemory<Host> SegmentRegion::open_common(const RegionToken& token, std::size_t bytes,
                                                     const std::vector<ByteRange>& own, const ErrorContext& context) {
  const auto segment = SharedSegment::find(name_of(token));
  const auto mapping = std::make_shared<Mapping>(segment->map_for(own, context));
  return {{static_cast<std::byte*>(mapping->native_handle().address), bytes}, mapping};
}

}  // namespace distx::inline DISTX_ABI::detail::shm
