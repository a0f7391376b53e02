// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/shared_memory/member.hpp"

namespace distx::shared_memory {

/// A collective on the progress thread, or up to two messages (of a send-receive).
class Pending {
 public:
  using Messages = std::array<std::shared_ptr<Envelope>, 2>;

  Pending() noexcept = default;
  Pending(std::shared_ptr<Member> member, std::shared_ptr<Ticket> task, const ErrorContext& context)
      : member_(std::move(member)), task_(std::move(task)), context_(context) {}
  Pending(std::shared_ptr<Member> member, Messages messages, const ErrorContext& context)
      : member_(std::move(member)), messages_(std::move(messages)), context_(context) {}
  Pending(Pending&&) noexcept = default;
  Pending& operator=(Pending&& other) noexcept {
    if (this != &other) {
      settle();
      member_ = std::move(other.member_);
      task_ = std::move(other.task_);
      messages_ = std::move(other.messages_);
      context_ = other.context_;
      uncaught_ = other.uncaught_;
    }
    return *this;
  }
  ~Pending() { settle(); }

  /// Message number i, once it is on its way.
  void hold(std::size_t i, std::shared_ptr<Envelope> message) noexcept { messages_[i] = std::move(message); }

  void wait() {
    if (member_ == nullptr) return;
    const auto member = std::exchange(member_, nullptr);
    if (const auto task = std::exchange(task_, nullptr); task != nullptr) {
      member->progress().wait(*task);
      task->rethrow();
    }
    std::exception_ptr error;
    for (auto& slot : messages_) {
      const auto message = std::exchange(slot, nullptr);
      if (message == nullptr) continue;
      try {
        meet(*member, *message, context_);
      } catch (...) {
        if (error == nullptr) error = std::current_exception();
      }
    }
    if (error != nullptr) std::rethrow_exception(error);
  }
  void wait(HostStream) { wait(); }
  [[nodiscard]] bool test() const noexcept {
    if (task_ != nullptr) return task_->done();
    for (const auto& message : messages_)
      if (message != nullptr && !member_->arena().advance(*message) && !is_lost(*message)) return false;
    return true;
  }

  /// Takes back messages that have not met their counterpart.
  void withdraw() {
    for (auto& message : messages_)
      if (message != nullptr) member_->arena().withdraw(*message);
    member_ = nullptr;
  }

  /// Waits until the message has met its counterpart; takes it back and throws where that does not come.
  static void meet(Member& member, Envelope& message, const ErrorContext& context) {
    Arena& arena = member.arena();
    const int other = message.sends ? message.to : message.from;
    Arena::Look look;
    const auto done = [&] { return arena.advance(message); };
    const auto stopped = [&] { return arena.revoked() || arena.has_left(other) || look.died(arena, other); };
    const auto end = detail::wait_until(arena.deadline(), done, stopped);
    if (end != detail::WaitEnd::ready) {
      if (arena.withdraw(message)) {
        if (end == detail::WaitEnd::stopped) arena.throw_stopped(other, context);
        const std::string sentence = "after " + arena.deadline().to_string() + " rank " + std::to_string(other) +
                                     " has not " + (message.sends ? "received" : "sent") + " a message of tag " +
                                     std::to_string(message.tag);
        arena.revoke(member.self.rank, sentence);
        throw TimeoutError(sentence, context);
      }
      // Being copied at this moment, by a rank that may die over it.
      if (detail::wait_until(no_timeout, done, [&] { return look.died(arena, other); }) != detail::WaitEnd::ready)
        arena.throw_stopped(other, context);
    }
    message.rethrow();
    if (message.mismatch) {
      const auto side = [](std::size_t count, ElementType type) {
        return std::to_string(count) + " elements of type " + std::string(name_of(type));
      };
      throw MismatchError((message.sends ? "sends " : "expects ") + side(message.count, message.type) + ", rank " +
                              std::to_string(other) + (message.sends ? " expects " : " sends ") +
                              side(message.other_count, message.other_type),
                          context);
    }
  }

 private:
  /// Whether `wait` would throw.
  [[nodiscard]] bool is_lost(const Envelope& message) const noexcept {
    Arena& arena = member_->arena();
    const int other = message.sends ? message.to : message.from;
    return arena.revoked() || arena.has_left(other) || look_.died(arena, other);
  }
  void settle() noexcept {
    if (member_ == nullptr) return;
    const auto member = member_;
    if (std::uncaught_exceptions() > uncaught_)
      member->arena().revoke(member->self.rank, "it let a started call go while unwinding");
    try {
      wait();
    } catch (const std::exception& error) {
      member->arena().revoke(member->self.rank, error.what());
    } catch (...) {
      member->arena().revoke(member->self.rank, "a started call that nobody waited for failed");
    }
  }

  std::shared_ptr<Member> member_;
  std::shared_ptr<Ticket> task_;
  Messages messages_;
  ErrorContext context_;
  mutable Arena::Look look_;
  int uncaught_ = std::uncaught_exceptions();
};

}  // namespace distx::shared_memory
