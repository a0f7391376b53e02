// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/nccl/detail/member.hpp"

namespace distx {

/// A call that was started on a stream.
///
/// `wait(stream)` makes the stream wait by an event, and the host for nothing; an op of the user's that throws
/// afterwards revokes the communicator. In an NcclGroup that is open there is nothing to wait for yet.
class NcclPending {
 public:
  NcclPending() noexcept = default;
  NcclPending(std::shared_ptr<nccl::Member> member, nccl::Job* job, const ErrorContext& context) noexcept
      : member_(std::move(member)), job_(job), context_(context) {}
  NcclPending(NcclPending&& other) noexcept
      : member_(std::move(other.member_)),
        job_(std::exchange(other.job_, nullptr)),
        context_(other.context_),
        uncaught_(other.uncaught_) {}
  NcclPending& operator=(NcclPending&& other) noexcept {
    if (this != &other) {
      let_go();
      member_ = std::move(other.member_);
      job_ = std::exchange(other.job_, nullptr);
      context_ = other.context_;
      uncaught_ = other.uncaught_;
    }
    return *this;
  }
  ~NcclPending() { let_go(); }

  /// @throws TimeoutError, RevokedError, RankFailure, Error of NCCL; and what a user's op threw on this rank
  void wait() {
    if (job_ == nullptr) return;
    const auto member = std::move(member_);
    member->finish(*std::exchange(job_, nullptr), context_);
  }
  /// What is enqueued on the stream from now on comes after the call.
  void wait(CudaStreamRef stream) {
    if (job_ == nullptr) return;
    const auto member = std::move(member_);
    member->follow(*std::exchange(job_, nullptr), stream, context_);
  }
  [[nodiscard]] bool test() noexcept { return job_ == nullptr || member_->test(*job_); }

 private:
  void let_go() noexcept {
    if (member_ == nullptr) return;
    if (std::uncaught_exceptions() > uncaught_) {
      member_->revoke("it let a started call go while unwinding");
      member_->let_go(*std::exchange(job_, nullptr));
      member_ = nullptr;
      return;
    }
    try {
      wait();
    } catch (...) {
      // wait() has revoked the communicator: its next call says why.
    }
  }

  std::shared_ptr<nccl::Member> member_;
  nccl::Job* job_ = nullptr;
  ErrorContext context_;
  int uncaught_ = std::uncaught_exceptions();
};

}  // namespace distx
