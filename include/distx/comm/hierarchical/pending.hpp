// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>

#include "distx/comm/hierarchical/member.hpp"

namespace distx::detail {

/// A collective on the progress thread; or up to two calls that the communicators below have started.
template <class Member>
class HierarchicalPending {
 public:
  using Below = std::array<StartedBelow, 2>;

  HierarchicalPending() noexcept = default;
  HierarchicalPending(std::shared_ptr<Member> member, std::shared_ptr<shared_memory::Ticket> task,
                      const ErrorContext& context)
      : member_(std::move(member)), task_(std::move(task)), context_(context) {}
  HierarchicalPending(std::shared_ptr<Member> member, Below below, const ErrorContext& context)
      : member_(std::move(member)), below_(std::move(below)), context_(context) {}
  HierarchicalPending(HierarchicalPending&&) noexcept = default;
  HierarchicalPending& operator=(HierarchicalPending&& other) noexcept {
    if (this != &other) {
      settle();
      member_ = std::move(other.member_);
      task_ = std::move(other.task_);
      below_ = std::move(other.below_);
      context_ = other.context_;
      uncaught_ = other.uncaught_;
    }
    return *this;
  }
  ~HierarchicalPending() { settle(); }

  void wait() {
    if (member_ == nullptr) return;
    const auto member = std::exchange(member_, nullptr);
    if (const auto task = std::exchange(task_, nullptr); task != nullptr) {
      member->progress().wait(*task);
      task->rethrow();
      return;
    }
    std::exception_ptr error;
    for (auto& started : below_) {
      try {
        member->guarded([&] { member->below(started.inside, context_, [&] { started.pending.wait(); }); });
      } catch (...) {
        if (error == nullptr) error = std::current_exception();
      }
    }
    if (error != nullptr) std::rethrow_exception(error);
  }
  void wait(HostStream) { wait(); }
  [[nodiscard]] bool test() {
    if (task_ != nullptr) return task_->done();
    bool done = true;
    for (auto& started : below_) done = started.pending.test() && done;
    return done;
  }

 private:
  void settle() noexcept {
    if (member_ == nullptr) return;
    if (std::uncaught_exceptions() > uncaught_) member_->revoke("it let a started call go while unwinding");
    try {
      wait();
    } catch (...) {
      // What failed has revoked the communicator: its next call says why.
    }
  }

  std::shared_ptr<Member> member_;
  std::shared_ptr<shared_memory::Ticket> task_;
  Below below_;
  ErrorContext context_;
  int uncaught_ = std::uncaught_exceptions();
};

}  // namespace distx::detail
