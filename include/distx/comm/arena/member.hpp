// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <memory>

#include "distx/comm/arena/algorithms.hpp"
#include "distx/comm/communicator.hpp"

namespace distx::arena {

/// One rank's side of an arena; what the handles, the Pendings and the progress thread share.
class Member {
 public:
  Member(std::shared_ptr<Arena> arena, int rank, std::string_view backend)
      : self{rank, arena->size(), backend}, arena_(std::move(arena)) {}
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  ~Member() {
    // Whoever unwinds will not come to the calls that the others wait in.
    if (std::uncaught_exceptions() > uncaught_) arena_->revoke(self.rank, "it let the communicator go while unwinding");
    arena_->leave(self.rank);
  }

  template <Collective Call>
  void collective(Arena::Lane lane, const Call& call) {
    Pointers& pointers = pointers_[static_cast<std::size_t>(lane)];
    guarded([&] {
      arena_->collective(
          lane, self.rank, post_of(call), self.context(call), [&](const auto& peer) { agree(call, self, peer); },
          [&](const auto& peer) { work(call, self, peer, pointers); });
    });
  }

  /// Runs `f`; where it throws, the others are told before the caller is, who then frees the buffers.
  template <class F>
  void guarded(F&& f) {
    try {
      f();
    } catch (const std::exception& error) {
      arena_->revoke(self.rank, error.what());
      throw;
    } catch (...) {
      arena_->revoke(self.rank, "an exception that is no std::exception");
      throw;
    }
  }

  [[nodiscard]] Arena& arena() noexcept { return *arena_; }
  [[nodiscard]] ProgressThread& progress() noexcept { return progress_; }
  [[nodiscard]] Span<std::byte> scratch(std::size_t bytes) {
    if (scratch_.size() < bytes) scratch_ = Buffer<std::byte>(bytes);
    return {scratch_.data(), bytes};
  }

  GroupCache groups;
  const RankOf self;

 private:
  std::shared_ptr<Arena> arena_;
  std::array<Pointers, 2> pointers_;
  Buffer<std::byte> scratch_;
  int uncaught_ = std::uncaught_exceptions();
  ProgressThread progress_;  // last: joined before anything that its tasks use goes
};

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

  void wait() {
    if (member_ == nullptr) return;
    const auto member = std::exchange(member_, nullptr);
    if (const auto task = std::exchange(task_, nullptr); task != nullptr) {
      // Without a limit of its own: the task's waits have one.
      detail::wait_until(none, [&] { return task->done(); }, [] { return false; });
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
      if (message != nullptr && !message->done()) return false;
    return true;
  }

  /// Takes back messages that have not met their counterpart.
  void withdraw() {
    for (auto& message : messages_)
      if (message != nullptr) member_->arena().mailbox(message->to).withdraw(*message);
    member_ = nullptr;
  }

  /// Waits until the message has met its counterpart; takes it back and throws where that does not come.
  static void meet(Member& member, const Envelope& message, const ErrorContext& context) {
    Arena& arena = member.arena();
    const int other = message.sends ? message.to : message.from;
    const auto stopped = [&] { return arena.revoked() || arena.has_left(other); };
    const auto end = detail::wait_until(arena.deadline(), [&] { return message.done(); }, stopped);
    if (end != detail::WaitEnd::ready) {
      if (arena.mailbox(message.to).withdraw(message)) {
        if (end == detail::WaitEnd::stopped && arena.revoked()) arena.throw_revoked(context);
        const std::string who = "rank " + std::to_string(other);
        if (end == detail::WaitEnd::stopped)
          throw RankFailure(who + " has let its communicator go and makes no more calls", other, nullptr, context);
        const std::string sentence = "after " + arena.deadline().words() + " " + who + " has not " +
                                     (message.sends ? "received" : "sent") + " a message of tag " +
                                     std::to_string(message.tag);
        arena.revoke(member.self.rank, sentence);
        throw TimeoutError(sentence, context);
      }
      detail::wait_until(none, [&] { return message.done(); }, [] { return false; });  // being copied at this moment
    }
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
  int uncaught_ = std::uncaught_exceptions();
};

}  // namespace distx::arena
