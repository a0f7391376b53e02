// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <vector>

#include "distx/memory/detail/lines.hpp"
#include "distx/parallel/detail/engine/streams.hpp"
#include "distx/parallel/detail/memory/held_memory.hpp"

namespace distx::detail {

/// Memory lent out run by run: the first gap that is long enough, on a boundary of 64 bytes.
///
/// What is lent is used in the order of a stream: it comes behind all that was enqueued on the streams which have used
/// memory of this pool.
template <MemorySpace Space>
class Pool {
 public:
  using stream = typename Space::stream;

  Pool(std::shared_ptr<MemoryAccount> account, Held<Space> memory)
      : account_(std::move(account)), memory_(std::move(memory)) {}

  /// Empty where no gap is long enough.
  [[nodiscard]] Span<std::byte, Space> take(std::size_t bytes, stream user) {
    if (memory_ == nullptr) return {};
    std::size_t begin = 0;
    auto place = lent_.begin();
    for (; place != lent_.end() && place->begin - begin < round_up_to_lines(bytes); ++place) begin = place->end;
    if (place == lent_.end() && (begin > memory_->span().size() || memory_->span().size() - begin < bytes)) return {};
    lent_.insert(place, {begin, begin + round_up_to_lines(bytes)});
    used_on_.before(user);
    used_on_.add(user);
    return memory_->span().subspan(begin, bytes);
  }
  /// Memory of it is used on that stream, too.
  void used_on(stream user) { used_on_.add(user); }
  void give_back(Span<std::byte, Space> run) noexcept {
    const auto begin = static_cast<std::size_t>(run.data() - memory_->span().data());
    std::erase_if(lent_, [&](const Lent& lent) { return lent.begin == begin; });
  }
  [[nodiscard]] const std::shared_ptr<MemoryAccount>& account() const noexcept { return account_; }

 private:
  struct Lent {
    std::size_t begin, end;
  };
  std::shared_ptr<MemoryAccount> account_;
  Held<Space> memory_;
  std::vector<Lent> lent_;  // in the order of the memory
  Streams<Space> used_on_;
};

/// A run of a pool's memory, given back at the end; or memory of its own where the pool has none left.
template <MemorySpace Space>
class Loan {
 public:
  Loan() noexcept = default;
  Loan(Pool<Space>& pool, Span<std::byte, Space> run) noexcept : pool_(&pool), run_(run) {}
  Loan(Pool<Space>& pool, std::size_t bytes)
      : own_(hold_local<Space>(pool.account(), MemoryKind::in_flight, bytes, uninitialized)), run_(own_->span()) {}
  Loan(Loan&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), own_(std::move(other.own_)), run_(std::exchange(other.run_, {})) {}
  Loan& operator=(Loan&& other) noexcept {
    if (this != &other) {
      end();
      pool_ = std::exchange(other.pool_, nullptr);
      own_ = std::move(other.own_);
      run_ = std::exchange(other.run_, {});
    }
    return *this;
  }
  ~Loan() { end(); }

  [[nodiscard]] Span<std::byte, Space> span() const noexcept { return run_; }
  [[nodiscard]] bool empty() const noexcept { return run_.empty(); }

 private:
  void end() noexcept {
    if (pool_ != nullptr) pool_->give_back(run_);
    pool_ = nullptr;
    own_ = nullptr;
    run_ = {};
  }
  Pool<Space>* pool_ = nullptr;
  Held<Space> own_;
  Span<std::byte, Space> run_;
};

}  // namespace distx::detail
