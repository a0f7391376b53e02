// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>
#include <memory>
#include <utility>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI {

/// An asynchronous call of a wrapper communicator: the inner Pending and the wrapper's actions at its end.
///
/// `Hook` has `bool ready()`, called once the inner Pending tests true; `waiting()`, called before the inner Pending is
/// waited for or destroyed; and afterwards one of `done()`, `failed()` (the wait has thrown) and `abandoned()`
/// (destroyed, must not throw).
template <class P, class Hook>
class DecoratedPending {
 public:
  DecoratedPending()
    requires std::default_initializable<P> && std::default_initializable<Hook>
  = default;
  DecoratedPending(P pending, Hook hook) : pending_(std::move(pending)), hook_(std::move(hook)), open_(true) {}
  DecoratedPending(DecoratedPending&& other) noexcept
      : pending_(std::move(other.pending_)), hook_(std::move(other.hook_)), open_(std::exchange(other.open_, false)) {}
  DecoratedPending& operator=(DecoratedPending&& other) noexcept {
    if (this != &other) {
      settle();
      pending_ = std::move(other.pending_);
      hook_ = std::move(other.hook_);
      open_ = std::exchange(other.open_, false);
    }
    return *this;
  }
  ~DecoratedPending() { settle(); }

  void wait() {
    finish([&] { pending_.wait(); });
  }
  template <class Stream>
    requires requires(P& pending, Stream stream) { pending.wait(stream); }
  void wait(Stream stream) {
    finish([&] { pending_.wait(stream); });
  }
  void keep(std::shared_ptr<void> owner)
    requires requires(P& pending) { pending.keep(owner); }
  {
    pending_.keep(std::move(owner));
  }
  [[nodiscard]] bool test() { return !open_ || (pending_.test() && hook_.ready()); }

 private:
  template <class Wait>
  void finish(Wait&& wait_for) {
    if (!std::exchange(open_, false)) return;
    hook_.waiting();
    try {
      wait_for();
    } catch (...) {
      hook_.failed();
      throw;
    }
    hook_.done();
  }
  void settle() noexcept {
    if (!std::exchange(open_, false)) return;
    hook_.waiting();
    { [[maybe_unused]] const P gone = std::move(pending_); }  // the destructor waits, or revokes during unwinding
    hook_.abandoned();
  }

  P pending_{};
  Hook hook_{};
  bool open_ = false;
};

}  // namespace distx::inline DISTX_ABI
