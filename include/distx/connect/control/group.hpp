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
  /// Finds what this rank's part of a call needs. If it throws, the rank has not entered the call.
  virtual void prepare(std::string_view call) { (void)call; }
  /// Sends a frame. May be called from any thread, and does not wait for other ranks.
  virtual void submit(Frame frame) = 0;
  /// Leaves the job. @param in_error  this rank or another one may not be able to do so
  virtual void leave(bool unwinding, bool in_error, const Timeout& deadline) = 0;
  [[nodiscard]] virtual std::size_t most_bytes() const noexcept { return ~std::size_t{0}; }

  /// @name For a transport without a thread that receives
  /// @{
  /// Receives what is there, or what arrives within a pause, which grows as a wait becomes long; ends the waits whose
  /// deadlines are over. Returns when a wait calls it again.
  virtual time_point receive(std::chrono::microseconds pause) { return (void)pause, time_point::max(); }
  /// Receives the failure that was published under an identity, and ends of ranks.
  virtual void look_for(std::uint64_t identity) { (void)identity; }
  /// @}

  /// Waits as `Inbox::await` does; null if the root has not ended the wait a second after the limit.
  std::optional<Frame> wait(Awaited what, const Timeout& limit, const ErrorContext& context) {
    using std::chrono::microseconds;
    const Deadline end(limit.unlimited() ? limit : limit.limit() + std::chrono::seconds(1));
    for (microseconds pause(50);; pause = std::min(2 * pause, microseconds(5000))) {
      auto received = inbox.await(what, std::min(end.end(), receive(pause)), context);
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
  /// @param group  the numbers of this rank in it
  ControlGroup(std::string_view backend, const Timeout& deadline, const FrameFields& group,
               std::shared_ptr<ControlTransport> transport)
      : VirtualConnector({group.rank, group.size, group.local_rank, group.local_size}),
        backend_(backend),
        deadline_(deadline),
        group_(group.identity),
        transport_(std::move(transport)) {}
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;
  ~ControlGroup() override {
    if (!passed_on_) leave();
  }

  void barrier() override { enter("barrier"); }
  void broadcast(std::span<std::byte> bytes, int root) override {
    check_control_root(root, rank(), size());
    enter("broadcast of " + std::to_string(bytes.size()) + " bytes from rank " + std::to_string(root),
          rank() == root ? bytes : std::span<std::byte>(), bytes);
  }
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) override {
    check_control_gather(send.size(), receive.size(), rank(), size());
    enter("all_gather of " + std::to_string(send.size()) + " bytes", send, receive);
  }
  std::shared_ptr<FailureChannel> failure_channel() override { return shared_from_this(); }

  /// Returns a group of the ranks that enter this call.
  std::shared_ptr<VirtualConnector> shrink(Timeout deadline) override {
    const auto context = where("shrink");
    check_current(context);
    replaced_ = true;
    transport_->submit({{.kind = FrameKind::shrink, .limit = deadline.limit().count(), .identity = group_}});
    std::string problem = "it does not answer within " + deadline.to_string();
    try {
      if (const auto next = transport_->wait(Awaited::group, deadline, context)) return next_group(*next);
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
    const Frame reply = call(grow_call, {}, context);
    if (reply.kind == FrameKind::result) return shared_from_this();
    replaced_ = true;
    return next_group(reply);
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
  /// Enters a call with this rank's bytes, and writes those of all ranks. Collective.
  /// @throws InvalidArgument if the call moves more bytes than the transport can; and what `call` throws
  void enter(const std::string& name, std::span<const std::byte> send = {}, std::span<std::byte> receive = {}) {
    const auto context = where(operation_of(name));
    if (const auto most = transport_->most_bytes(); receive.size() > most)
      throw InvalidArgument("a control message has at most " + std::to_string(most) +
                                " bytes for all ranks, this one has " + std::to_string(receive.size()),
                            context);
    const auto all = call(name, {reinterpret_cast<const char*>(send.data()), send.size()}, context).bytes;
    if (!all.empty()) std::memcpy(receive.data(), all.data(), std::min(all.size(), receive.size()));
  }
  /// Enters a call, and returns its result, or the larger group that `grow` makes. Collective.
  /// @throws MismatchError on every rank if the calls differ; the ranks remain in step
  /// @throws TimeoutError naming the missing ranks; RankFailure or RevokedError if one will not enter the call
  [[nodiscard]] Frame call(const std::string& name, std::string bytes, const ErrorContext& context) {
    made_.check("this connector", context);
    if (failed_) throw RevokedError("an earlier call of this connector failed", context);
    transport_->prepare(name);
    failed_ = true;  // until all have entered it: else this rank is out of step
    transport_->submit({{.kind = FrameKind::call, .limit = deadline_.limit().count()}, name, std::move(bytes)});
    auto reply = transport_->wait(Awaited::reply, deadline_, context);
    if (!reply) throw TimeoutError("timed out after " + deadline_.to_string() + ": rank 0 does not answer", context);
    if (reply->kind == FrameKind::fail) {
      failed_ = reply->error != 'm';
      raise(*reply, context);
    }
    if (reply->kind == FrameKind::regrouped && name != grow_call)
      throw RevokedError("rank 0 has replaced this group by one of " + std::to_string(reply->size) + " ranks", context);
    known_failures_ = known_failures;
    failed_ = false;
    return std::move(*reply);
  }
  void check_current(const ErrorContext& context) const {
    made_.check("this connector", context);
    if (replaced_) throw replaced_before(context);
  }
  /// Makes the group after this one.
  std::shared_ptr<ControlGroup> next_group(const Frame& group) {
    auto next = make_here<ControlGroup>(backend_, deadline_, group, transport_);
    passed_on_ = true;
    return next;
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
  std::uint64_t group_;  ///< the root's number of this group
  std::shared_ptr<ControlTransport> transport_;
  bool failed_ = false;
  bool replaced_ = false;   ///< by the group that `shrink` or `grow` has returned
  bool passed_on_ = false;  ///< the group after this one leaves
};

}  // namespace distx::inline DISTX_ABI::detail::control
