// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>

#include "distx/comm/shared_memory/shared_region.hpp"

namespace distx::inline DISTX_ABI::detail::shared_memory {

/// The requests of calls that are made one after another, kept between them to avoid allocations.
using KeptRequests = std::array<std::shared_ptr<MessageRequest>, 2>;

/// Up to two messages of one call in flight: a send, a receive, or both.
class Messages {
 public:
  /// @param context  borrowed
  /// @param blocking  the caller waits for nothing else
  Messages(SharedRegion& region, const ErrorContext& context, KeptRequests& kept, bool blocking) noexcept
      : region_(region), context_(context), kept_(kept), blocking_(blocking) {}
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;
  /// Withdraws the messages that have not been matched, and waits for those that another rank is copying.
  ~Messages() {
    for (auto& slot : requests_)
      if (auto* const request = std::exchange(slot, nullptr); request != nullptr && !region_.withdraw(*request))
        static_cast<void>(copied(*request));
  }

  /// @param exchanges  a receive follows, of a message with the same tag and header from the same rank
  void send(Span<const AnyElement> buffer, int to, int tag, std::uint64_t lengths, bool exchanges = false) {
    MessageRequest& request = described(buffer, context_.rank, to, tag, lengths);
    request.source = buffer.bytes();
    request.sends = true;
    request.exchanges = exchanges;
    post();
  }
  void receive(Span<AnyElement> buffer, int from, int tag, std::uint64_t lengths) {
    MessageRequest& request = described(buffer, from, context_.rank, tag, lengths);
    request.target = buffer.bytes();
    post();
  }

  /// Returns whether every message has completed or cannot complete anymore.
  [[nodiscard]] bool test() noexcept {
    for (MessageRequest* const request : requests_)
      if (request != nullptr && !advance(*request) && !is_lost(*request)) return false;
    return true;
  }
  /// Waits for all messages and throws the first error.
  void wait() {
    std::exception_ptr error;
    for (auto& slot : requests_) {
      auto* const request = std::exchange(slot, nullptr);
      if (request == nullptr) continue;
      try {
        meet(*request);
      } catch (...) {
        if (error == nullptr) error = std::current_exception();
      }
    }
    if (error != nullptr) std::rethrow_exception(error);
  }

 private:
  MessageRequest& described(Span<const AnyElement> buffer, int from, int to, int tag, std::uint64_t lengths) const {
    auto& kept = kept_[count_];
    if (kept == nullptr) kept = std::make_shared<MessageRequest>();
    MessageRequest& request = *kept;
    request.clear();
    request.header = MessageHeader::of(buffer, lengths);
    request.bytes = buffer.size_bytes();
    request.from = from;
    request.to = to;
    request.tag = tag;
    request.blocking = blocking_;
    return request;
  }
  void post() {
    region_.post(kept_[count_], context_);
    requests_[count_] = kept_[count_].get();  // a message that could not be posted is not waited for
    ++count_;
  }
  /// Completes this side of a message if it can be completed; returns whether it is complete.
  [[nodiscard]] bool advance(MessageRequest& message) noexcept {
    // The other rank is in the same exchange if what it sent in one was received here: it awaits this message.
    MessageRequest* const received = message.exchanges ? requests_[1] : nullptr;
    if (received != nullptr && region_.advance(*received) && received->exchanged && !received->mismatch &&
        region_.complete_locally(message))
      return true;
    return region_.advance(message);
  }
  [[nodiscard]] static int peer_of(const MessageRequest& request) noexcept {
    return request.sends ? request.to : request.from;
  }
  [[nodiscard]] bool is_lost(const MessageRequest& request) noexcept {
    const int other = peer_of(request);
    return region_.revoked() || region_.has_left(other) || probe_.died(region_, other);
  }

  /// Waits for the rank that copies a matched message; returns false if it dies.
  [[nodiscard]] bool copied(MessageRequest& message) {
    SharedRegion::LivenessProbe probe;
    return wait_until(
               no_timeout, [&] { return region_.advance(message); },
               [&] { return probe.died(region_, peer_of(message)); }) == WaitEnd::ready;
  }
  /// Waits until the message has been matched; withdraws it and throws if that cannot happen anymore.
  void meet(MessageRequest& message) {
    const int other = peer_of(message);
    SharedRegion::LivenessProbe probe;
    const auto done = [&] { return advance(message); };
    bool dead = false;
    const auto overdue = [&] {
      return "timed out after " + region_.deadline().to_string() + ": rank " + std::to_string(other) + " did not " +
             (message.sends ? "receive" : "send") + " a message with tag " + std::to_string(message.tag);
    };
    EarlyWarning warning(region_.deadline());
    const auto stopped = [&] {
      warning(context_, overdue);
      return region_.revoked() || region_.has_left(other) || dead || (dead = probe.died(region_, other));
    };
    const auto end = wait_until(region_.deadline(), done, stopped, region_.sleep_for_message(context_.rank));
    if (end != WaitEnd::ready) {
      if (region_.withdraw(message)) {
        if (end == WaitEnd::stopped) region_.throw_stopped(other, context_);
        throw TimeoutError(overdue(), context_);
      }
      if (!copied(message)) region_.throw_stopped(other, context_);
    }
    message.rethrow();
    if (message.mismatch)
      throw MismatchError(difference(message.header, message.other, other, message.sends), context_);
  }

  SharedRegion& region_;
  const ErrorContext& context_;
  KeptRequests& kept_;
  bool blocking_;
  std::array<MessageRequest*, 2> requests_{};
  std::size_t count_ = 0;
  SharedRegion::LivenessProbe probe_;
};

}  // namespace distx::inline DISTX_ABI::detail::shared_memory
