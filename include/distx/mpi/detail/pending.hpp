// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <utility>

#include "distx/mpi/detail/member.hpp"

namespace distx {

/// A call in MPI's hands; advances inside MPI calls of this rank: its own `test` and `wait`, and any other.
///
/// Letting one go while unwinding revokes the communicator and gives MPI a moment to end what was begun; a collective
/// that cannot end keeps its buffers, so they must not be let go before the program is.
class MpiPending {
 public:
  MpiPending() noexcept = default;
  MpiPending(std::shared_ptr<mpi::Member> member, mpi::Job* job, const ErrorContext& context) noexcept
      : member_(std::move(member)), job_(job), context_(context) {}
  MpiPending(MpiPending&& other) noexcept
      : member_(std::move(other.member_)),
        job_(std::exchange(other.job_, nullptr)),
        context_(other.context_),
        error_(std::move(other.error_)),
        uncaught_(other.uncaught_) {}
  MpiPending& operator=(MpiPending&& other) noexcept {
    if (this != &other) {
      let_go();
      member_ = std::move(other.member_);
      job_ = std::exchange(other.job_, nullptr);
      context_ = other.context_;
      error_ = std::move(other.error_);
      uncaught_ = other.uncaught_;
    }
    return *this;
  }
  ~MpiPending() { let_go(); }

  /// @throws MismatchError, TimeoutError, RevokedError, Error of MPI; and what a user's op threw on this rank
  void wait() {
    if (job_ == nullptr) return;
    const auto member = std::move(member_);
    mpi::Job* const job = std::exchange(job_, nullptr);
    const auto error = std::exchange(error_, nullptr);
    const Retiring retiring{*member, job};
    member->guarded([&] {
      if (error != nullptr) std::rethrow_exception(error);
      member->settle(*job, [&] {
        member->wait(*job, context_);
        job->finish();
      });
    });
  }
  void wait(HostStream) { wait(); }

  /// What it finds to be wrong, `wait` throws.
  [[nodiscard]] bool test() noexcept {
    if (job_ == nullptr || error_ != nullptr) return true;
    try {
      return job_->test(context_) || member_->is_lost();
    } catch (...) {
      error_ = std::current_exception();
      job_->abandon();
      return true;
    }
  }

 private:
  struct Retiring {
    Retiring(mpi::Member& m, mpi::Job* j) noexcept : member(m), job(j) {}
    Retiring(const Retiring&) = delete;
    Retiring& operator=(const Retiring&) = delete;
    ~Retiring() { member.retire(job); }
    mpi::Member& member;
    mpi::Job* job;
  };

  void let_go() noexcept {
    if (job_ == nullptr) return;
    if (std::uncaught_exceptions() > uncaught_) {
      member_->revoke("it let a started call go while unwinding");
      job_->abandon();
      member_->retire(std::exchange(job_, nullptr));
      return;
    }
    try {
      wait();
    } catch (...) {
      // wait() has revoked the communicator: its next call says why.
    }
  }

  std::shared_ptr<mpi::Member> member_;
  mpi::Job* job_ = nullptr;
  ErrorContext context_;
  std::exception_ptr error_;
  int uncaught_ = std::uncaught_exceptions();
};

}  // namespace distx
