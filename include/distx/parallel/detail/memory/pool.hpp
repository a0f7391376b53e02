// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <vector>

#include "distx/memory/detail/captured_work.hpp"
#include "distx/memory/detail/lines.hpp"
#include "distx/parallel/detail/base/streams.hpp"
#include "distx/parallel/detail/memory/tracked_memory.hpp"

namespace distx::inline DISTX_ABI::detail {

template <MemorySpace Space>
class MemoryPool;

/// Memory taken from a pool and given back at the end; or, where the pool was exhausted, separate memory, which is
/// allocated and freed stream-ordered.
template <MemorySpace Space>
class PoolAllocation {
 public:
  PoolAllocation() noexcept = default;
  PoolAllocation(PoolAllocation&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)),
        own_(std::move(other.own_)),
        user_(other.user_),
        span_(std::exchange(other.span_, {})) {}
  PoolAllocation& operator=(PoolAllocation other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(own_, other.own_);
    std::swap(user_, other.user_);
    std::swap(span_, other.span_);
    return *this;
  }
  ~PoolAllocation() {
    if (own_ != nullptr)
      pool_->free_after_use(std::move(own_), user_);
    else if (pool_ != nullptr)
      pool_->give_back(span_);
  }

  [[nodiscard]] Span<std::byte, Space> span() const noexcept { return span_; }
  [[nodiscard]] bool empty() const noexcept { return span_.empty(); }
  /// Returns the owner of the memory, which may outlive this allocation.
  [[nodiscard]] TrackedMemory<Space> owner() const noexcept;

 private:
  friend class MemoryPool<Space>;
  PoolAllocation(MemoryPool<Space>& pool, Span<std::byte, Space> span) noexcept : pool_(&pool), span_(span) {}
  PoolAllocation(MemoryPool<Space>& pool, TrackedMemory<Space> own, typename Space::stream user) noexcept
      : pool_(&pool), own_(std::move(own)), user_(user), span_(own_->span()) {}

  MemoryPool<Space>* pool_ = nullptr;
  TrackedMemory<Space> own_;
  [[no_unique_address]] typename Space::stream user_{};  // on which `own_` was allocated
  Span<std::byte, Space> span_;
};

/// Memory lent out in pieces, on boundaries of 64 bytes: the first gap that is long enough.
///
/// A piece is used in stream order: after everything enqueued on the streams that have used memory of this pool.
template <MemorySpace Space>
class MemoryPool {
 public:
  using stream = typename Space::stream;

  /// @param memory  may be null: nothing is ever taken from such a pool
  /// @param common  memory that the ranks of this host share, in place of `memory`: they must take the same pieces
  MemoryPool(std::shared_ptr<MemoryAccount> account, TrackedMemory<Space> memory, Span<std::byte, Space> common = {})
      : account_(std::move(account)),
        memory_(std::move(memory)),
        span_(common.empty() && memory_ != nullptr ? memory_->span() : common),
        common_(!common.empty()) {}

  /// Returns whether the ranks of this host share the memory.
  [[nodiscard]] bool common() const noexcept { return common_; }
  /// Returns a number of the allocation's place that is the same on all ranks if they share the memory of this host
  /// and have taken the same piece.
  [[nodiscard]] std::uint64_t place_of(const PoolAllocation<Space>& allocation) const noexcept {
    if (!common_) return 0;
    const std::byte* const at = allocation.span().data();
    return allocation.owner() == memory_ ? static_cast<std::uint64_t>(at - span_.data()) + 1 : ~std::uint64_t{0};
  }

  /// Returns an empty allocation if no gap is long enough.
  [[nodiscard]] PoolAllocation<Space> take(std::size_t bytes, stream user) {
    if (memory_ == nullptr) return {};
    std::size_t begin = 0;
    auto next = taken_.begin();
    for (; next != taken_.end() && next->begin - begin < round_up_to_lines(bytes); ++next) begin = next->end;
    if (next == taken_.end() && (begin > span_.size() || span_.size() - begin < bytes)) return {};
    taken_.insert(next, {begin, begin + round_up_to_lines(bytes)});
    used_on_.before(user);
    used_on_.add(user);
    return {*this, span_.subspan(begin, bytes)};
  }
  /// Allocates outside the pool, on this rank alone. While the stream is captured, the memory is kept until the next
  /// capture.
  [[nodiscard]] PoolAllocation<Space> allocate(std::size_t bytes, stream user) {
    const auto make = [&](auto... order) {
      return allocate_tracked_local<Space>(account_, observe::MemoryKind::in_flight, bytes, uninitialized, order...);
    };
    if (CapturedWork<Space>::capturing(user)) return {*this, captured_.emplace_back(make()), user};
    if constexpr (done_at_return<Space>)
      return {*this, make(), user};
    else
      return {*this, make(user), user};
  }
  [[nodiscard]] PoolAllocation<Space> take_or_allocate(std::size_t bytes, stream user) {
    auto taken = take(bytes, user);
    return taken.empty() ? allocate(bytes, user) : std::move(taken);
  }
  /// Notes that memory of the pool is used on that stream too.
  void used_on(stream user) { used_on_.add(user); }
  /// Takes note that a step is captured now, and that the work before it is complete.
  void begin_capture() noexcept {
    used_on_.clear();
    captured_.clear();
  }

 private:
  friend class PoolAllocation<Space>;
  struct TakenRange {
    std::size_t begin, end;
  };
  /// Frees separate memory after all work on the streams that have used memory of this pool.
  void free_after_use([[maybe_unused]] TrackedMemory<Space> own, stream user) noexcept {
    try {
      used_on_.before(user);
    } catch (...) {  // a broken device does no work
    }
  }
  void give_back(Span<std::byte, Space> span) noexcept {
    const auto begin = static_cast<std::size_t>(span.data() - span_.data());
    std::erase_if(taken_, [&](const TakenRange& range) { return range.begin == begin; });
  }

  std::shared_ptr<MemoryAccount> account_;
  TrackedMemory<Space> memory_;
  Span<std::byte, Space> span_;
  bool common_;
  std::vector<TakenRange> taken_;  // ordered by address
  Streams<Space> used_on_;
  std::vector<TrackedMemory<Space>> captured_;  // what captured work uses
};

template <MemorySpace Space>
TrackedMemory<Space> PoolAllocation<Space>::owner() const noexcept {
  return own_ != nullptr ? own_ : pool_ != nullptr ? pool_->memory_ : nullptr;
}

}  // namespace distx::inline DISTX_ABI::detail
