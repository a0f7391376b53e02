// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/control/group.hpp"
#include "distx/connect/control/root.hpp"
#include "distx/core/detail/known_failures.hpp"

namespace distx::detail::control {

/// A rank's connection to the root, and what it has received. The groups after `shrink` and `grow` take it over.
class ControlLink {
 public:
  virtual ~ControlLink() = default;
  /// Sends a frame. May be called from any thread, and does not wait for other ranks.
  virtual void submit(const Frame& frame) = 0;
  /// Returns the end of a wait whose limit the root keeps: it knows the missing ranks, and needs time to name them.
  [[nodiscard]] virtual Deadline end_of(const Timeout& limit) const {
    return limit.unlimited() ? Deadline(limit) : Deadline(limit.limit() + std::chrono::seconds(1));
  }
  /// Returns what a wait for the other ranks would say at its end, if the root has no clock that says it early.
  [[nodiscard]] virtual std::optional<std::string> overdue(const Timeout&) { return std::nullopt; }
  /// Lets a root without a clock end the waits of this rank; returns whether there is one.
  virtual bool expire() { return false; }
  /// Leaves the job. @param in_error  this rank or another one may not be able to do so
  virtual void leave(bool unwinding, bool in_error, const Timeout& deadline) = 0;
  [[nodiscard]] virtual std::size_t most_bytes() const noexcept { return ~std::size_t{0}; }

  Inbox inbox;
};

/// One rank's side of a connector whose ranks meet at a root.
class RootedGroup final : public ControlGroup {
 public:
  RootedGroup(std::string_view backend, const Timeout& deadline, const NextGroup& members,
              std::shared_ptr<ControlLink> link)
      : ControlGroup(backend, deadline, members.rank, members.processes), link_(std::move(link)) {}
  ~RootedGroup() override {
    if (!passed_on_) leave();
  }

  void publish(std::uint64_t identity, const std::string& reason) noexcept override try {
    if (!is_here()) return;
    link_->inbox.note_own(identity, reason);
    link_->submit(FrameWriter(FrameKind::notify).number(identity).text(reason).finish());
  } catch (...) {  // without memory; the others have their deadlines
  }
  [[nodiscard]] std::optional<std::string> poll(std::uint64_t identity) override {
    if (!is_here()) return std::nullopt;
    return link_->inbox.poll(identity);
  }

 private:
  /// Waits for what `await(deadline)` returns, null at its end.
  template <class Await>
  auto wait(const Timeout& limit, Await&& await) {
    auto received = await(link_->end_of(limit));
    if (!received && link_->expire()) received = await(Deadline(std::chrono::seconds(0)));
    return received;
  }

  std::string complete(CallPart part, const ErrorContext& context) override {
    link_->submit(part.frame());
    EarlyWarning warning(deadline_);
    auto reply = wait(deadline_, [&](const Deadline& end) {
      if (const auto due = warning.due(); due < end.end()) {
        const auto left = std::max(due - EarlyWarning::clock::now(), EarlyWarning::clock::duration(0));
        if (auto received = link_->inbox.await_reply(Deadline(left), context)) return received;
        if (auto words = link_->overdue(deadline_)) warning(context, [&] { return *words; });
      }
      return link_->inbox.await_reply(end, context);
    });
    if (!reply) throw TimeoutError("timed out after " + deadline_.to_string() + ": rank 0 does not answer", context);
    auto bytes = result_of(std::move(*reply), context);
    known_failures_ = known_failures;
    return bytes;
  }
  std::shared_ptr<ControlGroup> survivors(const Timeout& deadline, const ErrorContext& context) override {
    link_->submit(FrameWriter(FrameKind::shrink).number(milliseconds_of(deadline)).finish());
    std::string problem = "it does not answer within " + deadline.to_string();
    try {
      if (auto next = next_group(deadline, context)) return next;
    } catch (const Error& error) {
      if (!is_rank_loss(error)) throw;
      problem = error.message();  // the end of the connection
    }
    throw ConnectError(without_root(problem), context);
  }
  std::shared_ptr<ControlGroup> enlarged(const ErrorContext& context) override {
    auto next = next_group(deadline_, context);
    if (!next) throw RevokedError("rank 0 does not list the ranks", context);
    return next;
  }
  std::shared_ptr<ControlGroup> next_group(const Timeout& limit, const ErrorContext& context) {
    const auto next = wait(limit, [&](const Deadline& end) { return link_->inbox.await_next(end, context); });
    if (!next) return nullptr;
    auto group = make_here<RootedGroup>(context.backend, deadline_, *next, link_);
    passed_on_ = true;
    return group;
  }
  [[nodiscard]] std::size_t most_bytes() const noexcept override { return link_->most_bytes(); }

  void leave() noexcept try {
    const bool unwinding = is_unwinding();
    const bool in_error = unwinding || has_failed() || link_->inbox.has_failure() || known_failures != known_failures_;
    link_->leave(unwinding, in_error, deadline_);
  } catch (...) {  // without memory; the others see the end of the connection
  }

  std::uint64_t known_failures_ = known_failures;  ///< at the last call of all ranks
  std::shared_ptr<ControlLink> link_;
  bool passed_on_ = false;  ///< the group after this one leaves
};

}  // namespace distx::detail::control
