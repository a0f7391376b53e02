// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>
#include <memory>
#include <utility>

#include "distx/core/detail/leak.hpp"
#include "distx/core/detail/made_here.hpp"
#include "distx/core/space.hpp"
#include "distx/observe/detail/flight_ring.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// The reason with which `Operation::abandon` revokes the communicator.
inline constexpr const char* abandoned_by_exception = "an asynchronous call was abandoned by an exception";

/// An asynchronous call in flight, implemented by each backend.
///
/// It belongs to its communicator's state, which reuses it after `recycle`. A failure revokes the communicator before
/// it is thrown.
template <MemorySpace Space>
class Operation {
 public:
  /// Returns whether `complete` would return or throw at once. Errors are kept for `complete` to throw.
  [[nodiscard]] virtual bool test() noexcept = 0;
  /// Blocks the host until the call is complete. Called at most once.
  virtual void complete() = 0;
  /// Orders work that is later enqueued on `stream` after the call; blocks in host memory.
  virtual void complete(typename Space::stream) { complete(); }
  /// Gives up the call during stack unwinding: revokes the communicator and does not wait for other ranks. Buffers that
  /// the vendor's library may still access are kept alive by `keep`.
  virtual void abandon() noexcept = 0;
  /// Shares ownership of the memory that contains the call's buffers until the call is complete. If it never completes
  /// because another rank failed, the memory is never freed.
  virtual void keep(std::shared_ptr<void>) {}
  /// Ends the use of this object by its Pending, after `complete` or `abandon`.
  virtual void recycle() noexcept {}

 protected:
  ~Operation() = default;
};

}  // namespace detail

/// A move-only handle on an asynchronous collective or message. The call borrows its buffers until it is waited for.
///
/// The destructor waits for the call; during stack unwinding it revokes the communicator instead, so no rank waits for
/// this one. An empty handle, or one that was waited for, is complete. In a forked process `wait` throws InvalidState,
/// and the destructor does nothing.
///
///     auto pending = distx::start_all_reduce(comm, gradient, distx::sum);
///     compute();
///     pending.wait();
template <MemorySpace Space = Host>
class [[nodiscard]] Pending {
 public:
  Pending() noexcept = default;
  /// @param operation kept alive by this handle; it may belong to a pool
  /// @param flight  the record of the call, which is marked as completed when the host observes that
  explicit Pending(std::shared_ptr<detail::Operation<Space>> operation,
                   const detail::FlightTicket& flight = {}) noexcept
      : operation_(std::move(operation)), flight_(flight) {}
  Pending(Pending&&) noexcept = default;
  Pending& operator=(Pending&& other) noexcept {
    if (this != &other) {
      release();
      operation_ = std::move(other.operation_);
      flight_ = other.flight_;
      made_ = other.made_;
      exceptions_ = other.exceptions_;
    }
    return *this;
  }
  ~Pending() { release(); }

  /// Blocks the host until the call is complete.
  /// @throws MismatchError, TimeoutError, RevokedError, RankFailure, BackendError, or the exception of a custom op on
  ///         this rank
  void wait() {
    if (operation_ == nullptr) return;
    check_process();
    const Recycled operation{std::move(operation_)};
    operation.value->complete();
    flight_.complete();
  }
  /// Orders work that is later enqueued on `stream` after the call; blocks if the memory space is the host's.
  void wait(typename Space::stream stream) {
    if (operation_ == nullptr) return;
    check_process();
    const Recycled operation{std::move(operation_)};
    operation.value->complete(stream);
    if constexpr (std::is_empty_v<typename Space::stream>) flight_.complete();
  }
  /// Returns whether `wait()` would return, or throw, at once. Never blocks.
  [[nodiscard]] bool test() noexcept { return operation_ == nullptr || !made_.is_here() || operation_->test(); }
  /// Keeps `owner` alive until the call is complete, for buffers that `owner` contains.
  void keep(std::shared_ptr<void> owner) {
    if (operation_ != nullptr) operation_->keep(std::move(owner));
  }

 private:
  struct Recycled {
    explicit Recycled(std::shared_ptr<detail::Operation<Space>> operation) noexcept : value(std::move(operation)) {}
    Recycled(const Recycled&) = delete;
    Recycled& operator=(const Recycled&) = delete;
    ~Recycled() { value->recycle(); }
    std::shared_ptr<detail::Operation<Space>> value;
  };

  void check_process() const { made_.check("this Pending", {.operation = "wait"}); }
  void release() noexcept {
    if (operation_ == nullptr) return;
    if (!made_.is_here()) return detail::leak(std::move(operation_));  // it may own a thread of the other process
    const Recycled operation{std::move(operation_)};
    if (std::uncaught_exceptions() > exceptions_) return operation.value->abandon();
    try {
      operation.value->complete();
      flight_.complete();
    } catch (...) {
      // The failure has revoked the communicator, so its next call throws the reason.
    }
  }

  std::shared_ptr<detail::Operation<Space>> operation_;
  detail::FlightTicket flight_;
  detail::MadeHere made_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace distx::inline DISTX_ABI
