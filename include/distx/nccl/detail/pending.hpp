// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/nccl/detail/backend.hpp"

namespace distx {

/// An asynchronous call on an NcclCommunicator; move-only.
///
/// Inside an open NcclGroup it cannot be waited for. The destructor waits; during unwinding it revokes the communicator
/// and does not wait.
class NcclPending {
 public:
  NcclPending() noexcept = default;
  /// Owns `call`, which `state` has started.
  NcclPending(std::shared_ptr<nccl::detail::NcclBackend> state, nccl::detail::StreamCall* call,
              const ErrorContext& context) noexcept
      : state_(std::move(state)), call_(call), context_(context) {}
  NcclPending(NcclPending&& other) noexcept
      : state_(std::move(other.state_)),
        call_(std::exchange(other.call_, nullptr)),
        context_(other.context_),
        uncaught_(other.uncaught_) {}
  NcclPending& operator=(NcclPending&& other) noexcept {
    if (this != &other) {
      let_go();
      state_ = std::move(other.state_);
      call_ = std::exchange(other.call_, nullptr);
      context_ = other.context_;
      uncaught_ = other.uncaught_;
    }
    return *this;
  }
  ~NcclPending() { let_go(); }

  /// Blocks until the call is done.
  /// @throws TimeoutError, RevokedError, RankFailure, BackendError; and what a user's op threw on this rank
  void wait() {
    if (call_ == nullptr) return;
    const auto state = std::move(state_);
    state->finish(*std::exchange(call_, nullptr), context_);
  }
  /// Makes `stream` wait for the call, by an event. Blocks only until NCCL has enqueued the call. If a user's op throws
  /// later, the communicator is revoked.
  void wait(CudaStreamRef stream) {
    if (call_ == nullptr) return;
    const auto state = std::move(state_);
    state->follow(*std::exchange(call_, nullptr), stream, context_);
  }
  /// Returns whether `wait` would return or throw at once.
  [[nodiscard]] bool test() noexcept { return call_ == nullptr || state_->test(*call_); }

 private:
  void let_go() noexcept {
    if (state_ == nullptr) return;
    if (std::uncaught_exceptions() > uncaught_) {
      state_->revoke("it destroyed an asynchronous call while unwinding");
      state_->let_go(*std::exchange(call_, nullptr));
      state_ = nullptr;
      return;
    }
    try {
      wait();
    } catch (...) {
      // wait() has revoked the communicator; its next call throws the reason.
    }
  }

  std::shared_ptr<nccl::detail::NcclBackend> state_;
  nccl::detail::StreamCall* call_ = nullptr;
  ErrorContext context_;
  int uncaught_ = std::uncaught_exceptions();
};

}  // namespace distx
