// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/calls/wire_bytes.hpp"
#include "distx/comm/decorators/decorated_pending.hpp"
#include "distx/comm/decorators/decorator.hpp"
#include "distx/observe/timeline.hpp"

namespace distx::inline DISTX_ABI {

/// A wrapper communicator that records each call on a timeline: name, bytes, begin and end, and source location.
///
/// An asynchronous call is recorded as an asynchronous span, from its start until this rank observes its completion in
/// `wait` or `test`; the time inside the wait is a span `wait`. Times are host times. Failed calls are recorded too.
/// Each group made by `split` has its own tracks; `write_trace` writes all ranks' timelines to one file.
template <Communicator C>
class Traced : public detail::Decorator<C> {
  using base = detail::Decorator<C>;

  struct Recording {
    std::shared_ptr<observe::Timeline> timeline;
    observe::TimedSpan span;
    std::int64_t waited = 0;

    [[nodiscard]] bool ready() {
      if (span.end == 0) span.end = timeline->now();
      return true;
    }
    void waiting() { waited = timeline->now(); }
    void done() noexcept {
      const std::int64_t now = timeline->now();
      if (span.end == 0) span.end = now;
      timeline->record({.name = "wait", .begin = waited, .end = now, .track = span.track, .location = span.location});
      timeline->record(std::move(span));
    }
    void failed() noexcept { done(); }
    void abandoned() noexcept { done(); }
  };

 public:
  explicit Traced(C inner) : Traced(std::move(inner), std::make_shared<observe::Timeline>()) {}
  /// Records on a timeline that other communicators of this rank may share.
  Traced(C inner, std::shared_ptr<observe::Timeline> timeline)
      : base(std::move(inner)), timeline_(std::move(timeline)), track_(timeline_->add_track(track_name())) {}

  template <class Call>
    requires calls::Executes<C, Call>
  void execute(const Call& call) {
    observe::Timeline::Scope scope(*timeline_, described(call, false));
    this->inner().execute(call);
    scope.span().wire_bytes = on_the_wire(call);
  }
  template <class Call>
    requires calls::Starts<C, Call>
  [[nodiscard]] auto start(const Call& call, typename Call::space::stream after = {}) {
    observe::TimedSpan span = described(call, true);
    span.begin = timeline_->now();
    auto pending = this->inner().start(call, after);
    span.wire_bytes = on_the_wire(call);
    return DecoratedPending<decltype(pending), Recording>(std::move(pending), {timeline_, std::move(span)});
  }

  [[nodiscard]] Traced share() const { return Traced(this->inner().share(), this->groups(), timeline_, track_); }
  [[nodiscard]] Traced split(int color, int key, std::source_location location = std::source_location::current()) {
    return split(detail::SplitRule(color, key), location);
  }
  [[nodiscard]] Traced split(const detail::SplitRule& rule, const std::source_location& location) {
    return Traced(detail::split_by(this->inner(), rule, location), timeline_);
  }

  /// Returns this rank's timeline; record computation on it with `timeline().scope("backward")`.
  [[nodiscard]] observe::Timeline& timeline() noexcept { return *timeline_; }

 private:
  Traced(C inner, std::shared_ptr<detail::GroupCache> groups, std::shared_ptr<observe::Timeline> timeline, int track)
      : base(std::move(inner), std::move(groups)), timeline_(std::move(timeline)), track_(track) {}

  [[nodiscard]] std::string track_name() const {
    return std::string(this->backend()) + ", rank " + std::to_string(this->rank()) + " of " +
           std::to_string(this->size());
  }
  template <class Call>
  [[nodiscard]] observe::TimedSpan described(const Call& call, bool asynchronous) const {
    return {.name = std::string(name_of(call.kind)),
            .track = track_,
            .asynchronous = asynchronous,
            .bytes = payload_bytes(call, this->rank()),
            .location = call.location};
  }

  /// Returns the bytes sent and received by a call that the inner communicator has validated.
  template <class Call>
  [[nodiscard]] std::uint64_t on_the_wire(const Call& call) const noexcept {
    const calls::WireBytes wire = wire_bytes(call, this->rank(), this->size());
    return wire.sent + wire.received;
  }

  std::shared_ptr<observe::Timeline> timeline_;
  int track_;
};

}  // namespace distx::inline DISTX_ABI
