// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>

#include "distx/connect/tcp/detail/hub.hpp"
#include "distx/connect/tcp/detail/spoke.hpp"
#include "distx/core/detail/known_failures.hpp"
#include "distx/core/detail/made_here.hpp"

namespace distx::detail::tcp {

/// The rank, the size, and the conditions under which a rank joins.
struct JoinTerms {
  int rank = 0;
  int size = 1;
  Timeout deadline = default_deadline;
  std::string token;
};

/// One rank's side of a job over TCP: calls in step with the other ranks, failure notifications, and leaving.
///
/// Rank 0 serves the others with a `Hub`; each of them has a `Spoke`. The group after `shrink` or `grow` takes these
/// over.
class TcpGroup final : public FailureChannel {
  /// This rank's connections, and what it has received.
  struct Wire {
    Inbox inbox;
    std::unique_ptr<Hub> hub;      ///< rank 0 only
    std::unique_ptr<Spoke> spoke;  ///< the other ranks

    void submit(const Frame& frame) { hub ? hub->submit(frame) : spoke->submit(frame); }
    void leave(Timeout limit) { hub ? hub->leave(limit) : spoke->leave(Hub::after_error); }
  };

 public:
  /// Rank 0, which has waited to listen for a while for which `deadline` accounts. Blocks until all ranks have joined.
  TcpGroup(JoinTerms terms, Listener listener, const Deadline& deadline) : terms_(std::move(terms)) {
    const auto context = where("connect");
    wire_->hub = std::make_unique<Hub>(std::move(listener), terms_.token, terms_.size, terms_.deadline, deadline,
                                       posix::this_process(), wire_->inbox, context);
    join(deadline, context);
  }
  /// The other ranks, connected since a while for which `deadline` accounts. Blocks until all ranks have joined. If
  /// the size is 0, a process that joins a running job: blocks until its ranks call `grow`.
  TcpGroup(JoinTerms terms, ProvenSocket root, const Deadline& deadline) : terms_(std::move(terms)) {
    const auto context = where("connect");
    wire_->spoke = std::make_unique<Spoke>(
        std::move(root.socket), wire_->inbox,
        (joins() ? "rank 0" : name_of(0)) + " (at " + root.endpoint.to_string() + ") exited unexpectedly", context);
    const auto limit = milliseconds_of(terms_.deadline);
    const auto left = limit == no_limit ? no_limit : milliseconds_of(deadline.end() - Deadline::clock::now());
    FrameWriter hello(FrameKind::hello);
    hello.number(static_cast<std::uint64_t>(terms_.rank)).number(static_cast<std::uint64_t>(terms_.size));
    hello.number(limit).number(left);
    write_process(hello, posix::this_process());
    wire_->submit(hello.finish());
    if (joins())
      await_admission(root.endpoint, deadline, context);
    else
      join(deadline, context);
  }
  /// The group after `shrink` or `grow`, which takes over the connections of the one before.
  TcpGroup(TcpGroup& before, NextGroup next) : terms_(before.terms_), wire_(before.wire_) {
    take(std::move(next));
    before.passed_on_ = true;
  }
  TcpGroup(const TcpGroup&) = delete;
  TcpGroup& operator=(const TcpGroup&) = delete;
  ~TcpGroup() override {
    if (!passed_on_) leave(std::uncaught_exceptions() > uncaught_);
  }

  [[nodiscard]] int rank() const noexcept { return terms_.rank; }
  [[nodiscard]] int size() const noexcept { return terms_.size; }
  /// Returns the number of ranks below `end` that are on this rank's host.
  [[nodiscard]] int count_on_host(int end) const noexcept {
    int count = 0;
    for (int other = 0; other < end; ++other) count += process(other).shares_host_with(process(rank())) ? 1 : 0;
    return count;
  }

  /// Returns a group of the ranks that enter this call. Rank 0, which serves the others, decides for all.
  [[nodiscard]] std::shared_ptr<TcpGroup> shrink(Timeout deadline) {
    const auto context = where("shrink");
    made_.check("this connector", context);
    if (std::exchange(replaced_, true)) throw replaced_before(context);
    const auto lost = [&](const std::string& problem) { return ConnectError(without_root(problem), context); };
    wire_->submit(FrameWriter(FrameKind::shrink).number(milliseconds_of(deadline)).finish());
    try {
      auto next = wire_->inbox.await_next(patient(deadline), context);
      if (!next) throw lost("it does not answer within " + deadline.to_string());
      return make_here<TcpGroup>(*this, std::move(*next));
    } catch (const Error& error) {
      if (!is_rank_loss(error)) throw;
      throw lost(error.message());  // the end of the connection
    }
  }

  /// Returns a group of all ranks and of the processes that wait to join; null if none does. Collective.
  [[nodiscard]] std::shared_ptr<TcpGroup> grow() {
    const auto context = where("grow");
    made_.check("this connector", context);
    if (replaced_) throw replaced_before(context);
    if (exchange({.call = std::string(grow_call)}, context).empty()) return nullptr;
    replaced_ = true;
    auto next = wire_->inbox.await_next(patient(terms_.deadline), context);
    if (!next) throw RevokedError("rank 0 does not list the ranks", context);
    return make_here<TcpGroup>(*this, std::move(*next));
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
    made_.check("this connector", context);
    if (failed_) throw RevokedError("an earlier call of this connector failed", context);
    failed_ = true;  // until the reply: else this rank is out of step
    part.limit = milliseconds_of(terms_.deadline);
    wire_->submit(part.frame());
    const auto reply = wire_->inbox.await_reply(patient(terms_.deadline), context);
    if (!reply)
      throw TimeoutError("timed out after " + terms_.deadline.to_string() + ": rank 0 does not answer", context);
    if (reply->kind == FrameKind::fail) SentError::from(*reply).raise(context);
    failed_ = false;
    known_failures_ = known_failures;
    return reply->body;
  }

  void publish(std::uint64_t identity, const std::string& reason) noexcept override try {
    if (!made_.is_here()) return;
    wire_->inbox.note_own(identity, reason);
    wire_->submit(FrameWriter(FrameKind::notify).number(identity).text(reason).finish());
  } catch (...) {  // without memory; the others have their deadlines
  }
  [[nodiscard]] std::optional<std::string> poll(std::uint64_t identity) override {
    if (!made_.is_here()) return std::nullopt;
    return wire_->inbox.poll(identity);
  }

  [[nodiscard]] ErrorContext where(std::string_view operation) const noexcept {
    return {.operation = operation, .backend = "tcp", .rank = terms_.rank, .size = terms_.size};
  }

 private:
  /// The most bytes of a call: a frame has a few more.
  static constexpr std::size_t most_message_bytes = most_frame_bytes - 4096;

  [[nodiscard]] const Process& process(int rank) const noexcept { return processes_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::string name_of(int rank) const {
    return "rank " + std::to_string(rank) + " of " + std::to_string(terms_.size);
  }
  /// Returns a deadline that gives rank 0, which knows the ranks that are missing, time to name them.
  [[nodiscard]] static Deadline patient(const Timeout& timeout) {
    if (timeout.unlimited()) return Deadline(timeout);
    return Deadline(timeout.limit() + std::chrono::seconds(1));
  }

  void join(const Deadline& deadline, const ErrorContext& context) {
    const Deadline patience =
        deadline.unlimited() ? deadline : Deadline(deadline.end() - Deadline::clock::now() + std::chrono::seconds(1));
    try {
      auto joined = wire_->inbox.await_welcome(patience, context);
      if (!joined)
        throw TimeoutError("timed out after " + terms_.deadline.to_string() + ": rank 0 does not answer", context);
      processes_ = std::move(*joined);
      if (processes_.size() != static_cast<std::size_t>(terms_.size))
        throw ConnectError("rank 0 welcomes " + std::to_string(processes_.size()) + " ranks", context);
    } catch (const Error&) {
      wire_->leave(Hub::after_error);
      throw;
    }
  }
  [[nodiscard]] bool joins() const noexcept { return terms_.size == 0; }
  void take(NextGroup next) {
    terms_.rank = next.rank;
    processes_ = std::move(next.processes);
    terms_.size = static_cast<int>(processes_.size());
  }
  void await_admission(const Endpoint& root, const Deadline& deadline, const ErrorContext& context) {
    const std::string job = "the job at " + root.to_string();
    try {
      auto next = wire_->inbox.await_next(deadline, context);
      if (!next)
        throw ConnectError("timed out after " + terms_.deadline.to_string() + ": " + job +
                               " has not admitted this process: its ranks must call grow() from time to time",
                           context);
      take(std::move(*next));
    } catch (const Error& error) {
      wire_->leave(Hub::after_error);
      if (is_rank_loss(error)) throw ConnectError(job + " ended before it admitted this process", context);
      throw;
    }
  }
  void leave(bool unwinding) noexcept try {
    wire_->submit(FrameWriter(FrameKind::leave).number(unwinding ? 1 : 0).finish());
    const bool in_error = unwinding || failed_ || wire_->inbox.has_failure() || known_failures != known_failures_;
    wire_->leave(in_error ? Timeout(Hub::after_error) : terms_.deadline);
  } catch (...) {  // without memory; the others see the end of the connection
  }

  MadeHere made_;
  int uncaught_ = std::uncaught_exceptions();
  std::uint64_t known_failures_ = known_failures;  ///< at the last call of all ranks
  JoinTerms terms_;
  std::shared_ptr<Wire> wire_ = std::make_shared<Wire>();
  std::vector<Process> processes_;
  bool failed_ = false;
  bool replaced_ = false;   ///< by the group that `shrink` or `grow` has returned
  bool passed_on_ = false;  ///< that group leaves
};

}  // namespace distx::detail::tcp
