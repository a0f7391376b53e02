// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstring>
#include <memory>

#include "distx/connect/control/root.hpp"
#include "distx/core/detail/known_failures.hpp"
#include "distx/core/detail/made_here.hpp"

namespace distx::inline DISTX_ABI::detail::control {

/// A rank's way to the root, and what it has received. The groups after `shrink` and `grow` take it over.
class ControlTransport {
 public:
  virtual ~ControlTransport() = default;
  /// Sends a frame. May be called from any thread, and does not wait for other ranks.
  virtual void submit(const Frame& frame) = 0;
  /// Leaves the job. @param in_error  this rank or another one may not be able to do so
  virtual void leave(bool unwinding, bool in_error, const Timeout& deadline) = 0;
  [[nodiscard]] virtual std::size_t most_bytes() const noexcept { return ~std::size_t{0}; }
  /// Returns whether processes wait to join, as far as rank 0 knows before the call of `grow`.
  [[nodiscard]] virtual bool has_candidates() { return false; }

  /// @name For a transport without a thread that receives
  /// @{
  /// Receives what is there, or what arrives within a pause, which grows as a wait becomes long; ends the waits whose
  /// deadlines are over. Returns when a wait calls it again.
  virtual time_point receive(std::chrono::microseconds pause) { return (void)pause, time_point::max(); }
  /// Receives the failure that was published under an identity, and ends of ranks.
  virtual void look_for(std::uint64_t identity) { (void)identity; }
  /// @}

  /// Waits as `Inbox::await` does; null if the root has not ended the wait a second after the limit.
  template <class T>
  std::optional<T> wait(const Timeout& limit, const ErrorContext& context, std::optional<T> Inbox::*value) {
    using std::chrono::microseconds;
    const Deadline end(limit.unlimited() ? limit : limit.limit() + std::chrono::seconds(1));
    for (microseconds pause(50);; pause = std::min(2 * pause, microseconds(5000))) {
      auto received = inbox.await(value, std::min(end.end(), receive(pause)), context);
      if (received || end.expired()) return received;
    }
  }

  Inbox inbox;
};

/// One rank's side of a connector: calls in step with the other ranks, failure notifications, and the groups after
/// `shrink` and `grow`.
class ControlGroup final : public FailureChannel,
                           public VirtualConnector,
                           public std::enable_shared_from_this<ControlGroup> {
 public:
  ControlGroup(std::string_view backend, const Timeout& deadline, const RankNumbers& numbers,
               std::shared_ptr<ControlTransport> transport)
      : VirtualConnector(numbers), backend_(backend), deadline_(deadline), transport_(std::move(transport)) {}
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;
  ~ControlGroup() override {
    if (!passed_on_) leave();
  }

  void barrier() override { enter({{.kind = FrameKind::call}, "barrier"}); }
  void broadcast(std::span<std::byte> bytes, int root) override {
    check_control_root(root, rank(), size());
    enter({{.kind = FrameKind::call, .result = CallResult::of_root, .rank = root},
           "broadcast of " + std::to_string(bytes.size()) + " bytes from rank " + std::to_string(root)},
          rank() == root ? bytes : std::span<std::byte>(), bytes);
  }
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) override {
    check_control_gather(send.size(), receive.size(), rank(), size());
    enter({{.kind = FrameKind::call, .result = CallResult::of_all},
           "all_gather of " + std::to_string(send.size()) + " bytes"},
          send, receive);
  }
  std::shared_ptr<FailureChannel> failure_channel() override { return shared_from_this(); }

  /// Returns a group of the ranks that enter this call.
  std::shared_ptr<VirtualConnector> shrink(Timeout deadline) override {
    const auto context = where("shrink");
    check_current(context);
    replaced_ = true;
    transport_->submit({{.kind = FrameKind::shrink, .limit = deadline.limit().count()}});
    std::string problem = "it does not answer within " + deadline.to_string();
    try {
      if (auto next = next_group(deadline, context)) return next;
    } catch (const Error& error) {
      if (!is_rank_loss(error)) throw;
      problem = error.message();  // the end of the connection
    }
    throw ConnectError(without_root(problem), context);
  }
  /// Returns a group of all ranks and of the processes that wait to join; this one if none does. Collective.
  std::shared_ptr<VirtualConnector> grow() override {
    const auto context = where("grow");
    check_current(context);
    const bool finds = rank_ == 0 && transport_->has_candidates();
    Frame part{{.kind = FrameKind::call, .result = CallResult::of_root, .rank = 0}, grow_call, finds ? "1" : ""};
    if (call(std::move(part), context).empty()) return shared_from_this();
    auto larger = next_group(deadline_, context);
    if (!larger) throw RevokedError("rank 0 does not list the ranks", context);
    replaced_ = true;
    return larger;
  }

  void publish(std::uint64_t identity, const std::string& reason) noexcept override try {
    if (!made_.is_here()) return;
    inbox().note_own(identity, reason);
    transport_->submit({{.kind = FrameKind::notify, .identity = identity}, reason});
  } catch (...) {  // without memory; the others have their deadlines
  }
  [[nodiscard]] std::optional<std::string> poll(std::uint64_t identity) override {
    if (!made_.is_here()) return std::nullopt;
    if (auto known = inbox().poll(identity)) return known;
    transport_->look_for(identity);
    return inbox().poll(identity);
  }

 private:
  [[nodiscard]] Inbox& inbox() const noexcept { return transport_->inbox; }
  [[nodiscard]] ErrorContext where(std::string_view operation) const noexcept {
    return {.operation = operation, .backend = backend_, .rank = rank_, .size = size_};
  }
  /// Enters a call with what this rank contributes, and writes its result. Collective.
  /// @throws InvalidArgument if the call moves more bytes than the transport can; and what `call` throws
  void enter(Frame part, std::span<const std::byte> send = {}, std::span<std::byte> receive = {}) {
    const auto name = part.text;
    const auto context = where(operation_of(name));
    if (const auto most = transport_->most_bytes(); receive.size() > most)
      throw InvalidArgument("a control message has at most " + std::to_string(most) +
                                " bytes for all ranks, this one has " + std::to_string(receive.size()),
                            context);
    part.bytes.assign(reinterpret_cast<const char*>(send.data()), send.size());
    const auto result = call(std::move(part), context);
    if (!result.empty()) std::memcpy(receive.data(), result.data(), std::min(result.size(), receive.size()));
  }
  /// Enters a call, and returns the bytes that its result has for this rank. Collective.
  /// @throws MismatchError on every rank if the calls differ; the ranks remain in step
  /// @throws TimeoutError naming the missing ranks; RankFailure or RevokedError if one will not enter the call
  [[nodiscard]] std::string call(Frame part, const ErrorContext& context) {
    made_.check("this connector", context);
    if (failed_) throw RevokedError("an earlier call of this connector failed", context);
    failed_ = true;  // until all have entered it: else this rank is out of step
    part.limit = deadline_.limit().count();
    transport_->submit(part);
    auto reply = transport_->wait(deadline_, context, &Inbox::reply);
    if (!reply) throw TimeoutError("timed out after " + deadline_.to_string() + ": rank 0 does not answer", context);
    if (reply->kind == FrameKind::fail) {
      const auto error = SentError::from(*reply);
      failed_ = error.type != 'm';
      error.raise(context);
    }
    known_failures_ = known_failures;
    failed_ = false;
    return std::move(reply->bytes);
  }
  void check_current(const ErrorContext& context) const {
    made_.check("this connector", context);
    if (replaced_) throw replaced_before(context);
  }
  /// Waits for the next group; null at the end of the wait.
  std::shared_ptr<ControlGroup> next_group(const Timeout& limit, const ErrorContext& context) {
    const auto next = transport_->wait(limit, context, &Inbox::next);
    if (!next) return nullptr;
    auto group = make_here<ControlGroup>(backend_, deadline_, *next, transport_);
    passed_on_ = true;
    return group;
  }
  void leave() noexcept try {
    const bool unwinding = std::uncaught_exceptions() > uncaught_;
    const bool in_error = unwinding || failed_ || inbox().has_failure() || known_failures != known_failures_;
    transport_->leave(unwinding, in_error, deadline_);
  } catch (...) {  // without memory, or the folder; the others see the end of the process, or have their deadlines
  }

  MadeHere made_;
  int uncaught_ = std::uncaught_exceptions();
  std::uint64_t known_failures_ = known_failures;  ///< at the last call of all ranks
  std::string_view backend_;
  Timeout deadline_;
  std::shared_ptr<ControlTransport> transport_;
  bool failed_ = false;
  bool replaced_ = false;   ///< by the group that `shrink` or `grow` has returned
  bool passed_on_ = false;  ///< the group after this one leaves
};

}  // namespace distx::inline DISTX_ABI::detail::control
