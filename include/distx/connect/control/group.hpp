// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>
#include <type_traits>

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
  /// Receives what is there; returns whether a wait must call it again. @param is_long  the wait has become long
  virtual bool receive(bool is_long) { return (void)is_long, false; }
  /// Receives the failure that was published under an identity, and ends of ranks.
  virtual void look_for(std::uint64_t identity) { (void)identity; }
  /// @}

  /// Returns whether the root has a clock: it knows the missing ranks, and needs time to name them.
  [[nodiscard]] virtual bool root_keeps_time() const noexcept { return false; }
  /// Returns what a wait for the other ranks would say at its end, if the root does not say it.
  [[nodiscard]] virtual std::optional<std::string> overdue(const Timeout&) { return std::nullopt; }
  /// Ends the waits of this rank, unless the root does.
  virtual void expire() {}

  Inbox inbox;
};

/// One rank's side of a connector: calls in step with the other ranks, failure notifications, and the groups after
/// `shrink` and `grow`.
class ControlGroup final : public FailureChannel, public RankNumbers {
 public:
  ControlGroup(std::string_view backend, const Timeout& deadline, const RankNumbers& numbers,
               std::shared_ptr<ControlTransport> transport)
      : RankNumbers(numbers), backend_(backend), deadline_(deadline), transport_(std::move(transport)) {}
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;
  ~ControlGroup() override {
    if (!passed_on_) leave();
  }

  [[nodiscard]] ErrorContext where(std::string_view operation) const noexcept {
    return {.operation = operation, .backend = backend_, .rank = rank_, .size = size_};
  }

  /// Enters a call, and returns the bytes that its result has for this rank. Collective.
  /// @throws MismatchError on every rank if the calls differ; the ranks remain in step
  /// @throws TimeoutError naming the missing ranks; RankFailure or RevokedError if one will not enter the call
  [[nodiscard]] std::string call(CallPart part, const ErrorContext& context) {
    made_.check("this connector", context);
    if (failed_) throw RevokedError("an earlier call of this connector failed", context);
    failed_ = true;  // until all have entered it: else this rank is out of step
    part.limit = milliseconds_of(deadline_);
    transport_->submit(part.frame());
    auto reply = wait(deadline_, context, [&](time_point end) { return inbox().await_reply(end, context); });
    if (!reply) throw TimeoutError("timed out after " + deadline_.to_string() + ": rank 0 does not answer", context);
    if (reply->kind == FrameKind::fail) {
      const auto error = SentError::from(*reply);
      failed_ = error.type != 'm';
      error.raise(context);
    }
    known_failures_ = known_failures;
    failed_ = false;
    return std::move(reply->body);
  }
  /// Returns a group of the ranks that enter this call.
  [[nodiscard]] std::shared_ptr<ControlGroup> shrink(const Timeout& deadline) {
    const auto context = where("shrink");
    check_current(context);
    replaced_ = true;
    transport_->submit(FrameWriter(FrameKind::shrink).number(milliseconds_of(deadline)).finish());
    std::string problem = "it does not answer within " + deadline.to_string();
    try {
      if (auto next = next_group(deadline, context)) return next;
    } catch (const Error& error) {
      if (!is_rank_loss(error)) throw;
      problem = error.message();  // the end of the connection
    }
    throw ConnectError(without_root(problem), context);
  }
  /// Returns a group of all ranks and of the processes that wait to join; null if none does. Collective.
  [[nodiscard]] std::shared_ptr<ControlGroup> grow() {
    const auto context = where("grow");
    check_current(context);
    const bool finds = rank_ == 0 && transport_->has_candidates();
    CallPart part{.call = std::string(grow_call), .result = CallResult::of_root, .bytes = finds ? "1" : ""};
    if (call(std::move(part), context).empty()) return nullptr;
    auto larger = next_group(deadline_, context);
    if (!larger) throw RevokedError("rank 0 does not list the ranks", context);
    replaced_ = true;
    return larger;
  }
  /// @throws InvalidArgument if a call moves more bytes than the transport can
  void check_length(std::size_t bytes, const ErrorContext& context) const {
    if (const auto most = transport_->most_bytes(); bytes > most)
      throw InvalidArgument("a control message has at most " + std::to_string(most) +
                                " bytes for all ranks, this one has " + std::to_string(bytes),
                            context);
  }

  void publish(std::uint64_t identity, const std::string& reason) noexcept override try {
    if (!made_.is_here()) return;
    inbox().note_own(identity, reason);
    transport_->submit(FrameWriter(FrameKind::notify).number(identity).text(reason).finish());
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
  void check_current(const ErrorContext& context) const {
    made_.check("this connector", context);
    if (replaced_) throw replaced_before(context);
  }
  /// Waits for what `await(end)` returns, null at its end.
  template <class Await>
  std::invoke_result_t<Await, time_point> wait(const Timeout& limit, const ErrorContext& context, Await&& await) {
    using std::chrono::microseconds;
    const bool is_served = transport_->root_keeps_time();
    const Deadline end(is_served && !limit.unlimited() ? limit.limit() + std::chrono::seconds(1) : limit);
    EarlyWarning warning(limit);
    auto due = is_served ? time_point::max() : warning.due();
    for (microseconds pause(50);; pause = std::min(2 * pause, microseconds(5000))) {
      auto next = std::min(end.end(), due);
      if (transport_->receive(pause > microseconds(500))) next = std::min(next, Deadline::clock::now() + pause);
      if (auto received = await(next)) return received;
      if (Deadline::clock::now() >= due) {
        if (const auto words = transport_->overdue(limit)) warning(context, [&] { return *words; });
        due = time_point::max();
      }
      if (!end.expired()) continue;
      transport_->expire();
      return await(Deadline::clock::now());
    }
  }
  /// Waits for the next group; null at the end of the wait.
  std::shared_ptr<ControlGroup> next_group(const Timeout& limit, const ErrorContext& context) {
    const auto next = wait(limit, context, [&](time_point end) { return inbox().await_next(end, context); });
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
