// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>

#include "distx/comm/decorators/decorated_pending.hpp"
#include "distx/comm/decorators/decorator.hpp"
#include "distx/comm/wire_speed.hpp"
#include "distx/core/error.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// The emulated link of one rank: transfers occupy it one after another.
class EmulatedWire {
 public:
  using clock = std::chrono::steady_clock;

  explicit EmulatedWire(const WireSpeed& speed) : speed_(speed) {}

  /// Returns when a transfer that is enqueued at `now` has left the link.
  [[nodiscard]] clock::time_point occupy(clock::time_point now, const WireBytes& bytes) {
    const std::lock_guard lock(mutex_);
    free_ = std::max(free_, now) + speed_.duration(bytes);
    return free_;
  }

 private:
  WireSpeed speed_;
  std::mutex mutex_;  // a group may be used by another thread than its parent
  clock::time_point free_{};
};

}  // namespace detail

/// A wrapper communicator that makes each call last at least latency + bytes / bandwidth, where bytes is the larger of
/// the bytes sent and received by `wire_bytes`.
///
/// The emulated link takes no processor time: blocking calls sleep until their time has passed, asynchronous calls only
/// in their wait. Time begins at this rank's call, or at the end of the previous transfer if the link is still busy, so
/// time spent waiting for a late rank counts as well. Handles made by `share` and groups made by `split` use the same
/// link. A communicator of one rank has no link.
template <Communicator C>
  requires HostAccessible<typename C::space>
class Throttled : public detail::Decorator<C> {
  using base = detail::Decorator<C>;
  using clock = detail::EmulatedWire::clock;

  struct Arrival {
    clock::time_point due{};
    [[nodiscard]] bool ready() const { return clock::now() >= due; }
    void waiting() const noexcept {}
    void done() const { std::this_thread::sleep_until(due); }
    void failed() const noexcept {}
    void abandoned() const noexcept {
      if (std::uncaught_exceptions() == 0) std::this_thread::sleep_until(due);
    }
  };

 public:
  /// @throws InvalidArgument if the latency is negative or the bandwidth is not positive
  Throttled(C inner, const WireSpeed& speed) : base(std::move(inner)) {
    if (speed.latency.count() < 0 || detail::is_nan(speed.bandwidth) || speed.bandwidth <= 0)
      throw InvalidArgument(
          "invalid wire: latency must be >= 0 and bandwidth > 0 bytes per second",
          {.operation = "Throttled", .backend = this->backend(), .rank = this->rank(), .size = this->size()});
    wire_ = std::make_shared<detail::EmulatedWire>(speed);
  }

  /// Ranks at the ends of a link share no memory.
  void allocate_common(std::size_t, const std::vector<detail::ByteRange>&, std::source_location) = delete;
  void allocate_for_host(std::size_t, std::source_location) = delete;
  void passes_operands() = delete;

  template <class Call>
    requires calls::Executes<C, Call>
  void execute(const Call& call) {
    const auto begin = clock::now();
    this->inner().execute(call);
    std::this_thread::sleep_until(due(call, begin));
  }
  template <class Call>
    requires calls::Starts<C, Call>
  [[nodiscard]] auto start(const Call& call, typename Call::space::stream after = {}) {
    const auto begin = clock::now();
    auto pending = this->inner().start(call, after);
    return DecoratedPending<decltype(pending), Arrival>(std::move(pending), {due(call, begin)});
  }

  [[nodiscard]] Throttled share() const { return Throttled(this->inner().share(), this->groups(), wire_); }
  [[nodiscard]] Throttled split(int color, int key, std::source_location location = std::source_location::current()) {
    return split(detail::SplitRule(color, key), location);
  }
  [[nodiscard]] Throttled split(const detail::SplitRule& rule, const std::source_location& location) {
    return Throttled(detail::split_by(this->inner(), rule, location), std::make_shared<detail::GroupCache>(), wire_);
  }

 private:
  Throttled(C inner, std::shared_ptr<detail::GroupCache> groups, std::shared_ptr<detail::EmulatedWire> wire)
      : base(std::move(inner), std::move(groups)), wire_(std::move(wire)) {}

  template <class Call>
  [[nodiscard]] clock::time_point due(const Call& call, clock::time_point begin) {
    if (this->size() == 1) return begin;
    return wire_->occupy(begin, wire_bytes(call, this->rank(), this->size()));
  }

  std::shared_ptr<detail::EmulatedWire> wire_;
};

}  // namespace distx::inline DISTX_ABI
