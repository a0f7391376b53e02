// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>

#include "distx/connect/detail/host.hpp"
#include "distx/connect/tcp/detail/hub.hpp"
#include "distx/connect/tcp/detail/spoke.hpp"

namespace distx::detail::tcp {

[[nodiscard]] inline PeerProcess this_peer() {
  PeerProcess self{host_id().data(), host_name(), static_cast<int>(::getpid())};
  if (self.host_name.empty()) self.host_name = "an unnamed host";
  return self;
}

/// The rank, the size, and the conditions under which a rank joins.
struct JoinTerms {
  int rank = 0;
  int size = 1;
  Timeout deadline = default_deadline;
  std::string token;
};

/// One rank's side of a job over TCP: calls in step with the other ranks, failure notifications, and leaving.
///
/// Rank 0 serves the others with a `Hub`; each of them has a `Spoke`.
class TcpGroup final : public FailureChannel {
 public:
  /// Rank 0. Blocks until all ranks have joined.
  TcpGroup(JoinTerms terms, Listener listener) : terms_(std::move(terms)) {
    const auto context = where("connect");
    hub_ = std::make_unique<Hub>(std::move(listener), terms_.token, terms_.size, terms_.deadline, this_peer(), inbox_,
                                 context);
    join(Deadline(terms_.deadline), context);
  }
  /// The other ranks, connected since a while for which `deadline` accounts. Blocks until all ranks have joined.
  TcpGroup(JoinTerms terms, ProvenSocket root, const Deadline& deadline) : terms_(std::move(terms)) {
    const auto context = where("connect");
    spoke_ =
        std::make_unique<Spoke>(std::move(root.socket), inbox_,
                                name_of(0) + " (at " + root.endpoint.to_string() + ") exited unexpectedly", context);
    const auto limit = milliseconds_of(terms_.deadline);
    const auto left = limit == no_limit ? no_limit : milliseconds_of(deadline.end() - Deadline::clock::now());
    FrameWriter hello(FrameKind::hello);
    hello.number(static_cast<std::uint64_t>(terms_.rank)).number(static_cast<std::uint64_t>(terms_.size));
    hello.number(limit).number(left);
    this_peer().write(hello);
    spoke_->submit(hello.finish());
    join(deadline, context);
  }
  TcpGroup(const TcpGroup&) = delete;
  TcpGroup& operator=(const TcpGroup&) = delete;
  ~TcpGroup() override { leave(std::uncaught_exceptions() > uncaught_); }

  [[nodiscard]] int rank() const noexcept { return terms_.rank; }
  [[nodiscard]] int size() const noexcept { return terms_.size; }
  /// Returns the number of ranks below `end` that are on this rank's host.
  [[nodiscard]] int count_on_host(int end) const noexcept {
    int count = 0;
    for (int other = 0; other < end; ++other) count += process(other).host == process(rank()).host ? 1 : 0;
    return count;
  }

  /// @throws InvalidArgument if a call moves more than most_message_bytes
  void check_length(std::size_t bytes, const ErrorContext& context) const {
    if (bytes > most_message_bytes)
      throw InvalidArgument("a control message has at most " + std::to_string(most_message_bytes) +
                                " bytes for all ranks, this one has " + std::to_string(bytes),
                            context);
  }
  /// Enters a call, and returns the bytes that its result has for this rank. Collective.
  [[nodiscard]] std::string exchange(CallPart part, const ErrorContext& context) {
    if (failed_) throw RevokedError("an earlier call of this connector failed", context);
    failed_ = true;  // until the reply: else this rank is out of step
    part.limit = milliseconds_of(terms_.deadline);
    submit(part.frame());
    const auto reply = inbox_.await_reply(patient(terms_.deadline), context);
    if (!reply)
      throw TimeoutError("timed out after " + terms_.deadline.to_string() + ": rank 0 does not answer", context);
    if (reply->kind == FrameKind::fail) SentError::from(*reply).raise(context);
    failed_ = false;
    return reply->body;
  }

  void publish(std::uint64_t identity, const std::string& reason) noexcept override try {
    inbox_.note_own(identity, reason);
    submit(FrameWriter(FrameKind::notify).number(identity).text(reason).finish());
  } catch (...) {  // without memory; the others have their deadlines
  }
  [[nodiscard]] std::optional<std::string> poll(std::uint64_t identity) override { return inbox_.poll(identity); }

  [[nodiscard]] ErrorContext where(std::string_view operation) const noexcept {
    return {.operation = operation, .backend = "tcp", .rank = terms_.rank, .size = terms_.size};
  }

 private:
  /// The most bytes of a call: a frame has a few more.
  static constexpr std::size_t most_message_bytes = most_frame_bytes - 4096;

  [[nodiscard]] const PeerProcess& process(int rank) const noexcept {
    return processes_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] std::string name_of(int rank) const {
    return "rank " + std::to_string(rank) + " of " + std::to_string(terms_.size);
  }
  /// Returns a deadline that gives rank 0, which knows the ranks that are missing, time to name them.
  [[nodiscard]] static Deadline patient(const Timeout& timeout) {
    if (timeout.unlimited()) return Deadline(timeout);
    return Deadline(timeout.limit() + std::chrono::seconds(1));
  }
  void submit(const Frame& frame) { hub_ ? hub_->submit(frame) : spoke_->submit(frame); }

  void join(const Deadline& deadline, const ErrorContext& context) {
    const Deadline patience =
        deadline.unlimited() ? deadline : Deadline(deadline.end() - Deadline::clock::now() + std::chrono::seconds(1));
    try {
      auto joined = inbox_.await_welcome(patience, context);
      if (!joined)
        throw TimeoutError("timed out after " + terms_.deadline.to_string() + ": rank 0 does not answer", context);
      processes_ = std::move(*joined);
      if (processes_.size() != static_cast<std::size_t>(terms_.size))
        throw ConnectError("rank 0 welcomes " + std::to_string(processes_.size()) + " ranks", context);
    } catch (const Error&) {
      hub_ ? hub_->leave(Hub::after_error) : spoke_->leave(Hub::after_error);
      throw;
    }
  }
  void leave(bool unwinding) noexcept try {
    submit(FrameWriter(FrameKind::leave).number(unwinding ? 1 : 0).finish());
    const bool in_error = unwinding || failed_ || inbox_.has_failure();
    if (hub_)
      hub_->leave(in_error ? Timeout(Hub::after_error) : terms_.deadline);
    else
      spoke_->leave(Hub::after_error);
  } catch (...) {  // without memory; the others see the end of the connection
  }

  int uncaught_ = std::uncaught_exceptions();
  JoinTerms terms_;
  Inbox inbox_;
  std::unique_ptr<Hub> hub_;      ///< rank 0 only
  std::unique_ptr<Spoke> spoke_;  ///< the other ranks
  std::vector<PeerProcess> processes_;
  bool failed_ = false;
};

}  // namespace distx::detail::tcp
