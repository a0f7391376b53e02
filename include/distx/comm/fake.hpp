// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "distx/comm/runtime/basic_communicator_definitions.hpp"
#include "distx/comm/runtime/peer_views.hpp"
#include "distx/comm/wire_speed.hpp"
#include "distx/core/detail/revocation_reason.hpp"
#include "distx/memory/detail/widened.hpp"

namespace distx::inline DISTX_ABI {

class FakeCommunicator;

namespace detail {

/// The simulated time of a fake rank, and its link, which transfers calls one after another.
class SimulatedClock {
 public:
  using duration = std::chrono::nanoseconds;

  [[nodiscard]] duration now() const { return read(now_); }
  [[nodiscard]] duration waited() const { return read(waited_); }
  void compute(duration time) {
    const std::lock_guard lock(mutex_);
    now_ += time;
  }
  /// Returns when a call that is made now has left the link.
  [[nodiscard]] duration transfer(duration time) {
    const std::lock_guard lock(mutex_);
    return free_ = std::max(free_, now_) + time;
  }
  void wait_until(duration due) {
    const std::lock_guard lock(mutex_);
    if (due <= now_) return;
    waited_ += due - now_;
    now_ = due;
  }

 private:
  [[nodiscard]] duration read(const duration& time) const {
    const std::lock_guard lock(mutex_);
    return time;
  }

  mutable std::mutex mutex_;  // a group may be used by another thread than its parent
  duration now_{0}, free_{0}, waited_{0};
};

/// Copies the part that both blocks have, and zeros the rest of the target.
inline void copy_and_zero(std::byte* to, std::size_t to_bytes, const std::byte* from, std::size_t from_bytes) noexcept {
  const std::size_t common = std::min(to_bytes, from_bytes);
  copy_bytes(to, from, common);
  if (to_bytes > common) std::memset(to + common, 0, to_bytes - common);
}

/// Reduces `ranks` equal operands, by doubling; sums of reduced-precision types are rounded once, at the end.
inline void reduce_equal(const AnyOp& op, Span<const AnyElement> operand, Span<AnyElement> target, int ranks) {
  constexpr std::size_t block = 512;  // elements, of 16 bytes at most
  alignas(16) std::array<std::byte, 16 * block> power, sum;
  const bool wide = is_narrow_float(op.type());
  const AnyOp last = wide ? op.widened() : op, step = last.unfinished();
  const std::size_t width = wide ? sizeof(float) : operand.element_bytes();
  for (std::size_t begin = 0; begin < operand.size(); begin += block) {
    const auto from = operand.subspan(begin, std::min(block, operand.size() - begin));
    const auto to = target.subspan(begin, from.size());
    const auto add_power = [&](std::byte* at) {
      void* const targets[] = {at};
      const void* const operands[] = {at, power.data()};
      step.reduce(targets, 1, operands, 2, from.size(), ranks);
    };
    if (wide)
      widen(from, reinterpret_cast<float*>(power.data()));
    else
      std::memcpy(power.data(), from.bytes(), from.size_bytes());
    bool empty = true;
    for (auto left = static_cast<unsigned>(ranks); left != 0; left >>= 1U) {
      if ((left & 1U) != 0 && empty)
        std::memcpy(sum.data(), power.data(), from.size() * width);
      else if ((left & 1U) != 0)
        add_power(sum.data());
      empty = empty && (left & 1U) == 0;
      if (left > 1) add_power(power.data());
    }
    void* const targets[] = {sum.data()};
    const void* const operands[] = {sum.data()};
    if (last.finishes()) last.reduce(targets, 1, operands, 1, from.size(), ranks);
    if (wide)
      narrow(reinterpret_cast<const float*>(sum.data()), to);
    else
      std::memcpy(to.bytes(), sum.data(), to.size_bytes());
  }
}

/// The backend of a fake rank. See `detail::BasicCommunicator`.
class FakeBackend {
 public:
  using space = Host;
  using State = CommunicatorState<FakeBackend>;
  using CallTime = std::function<std::chrono::nanoseconds(const Call<Host>&, int rank, int size)>;

  FakeBackend(int rank, int size, std::shared_ptr<SimulatedClock> clock, CallTime time)
      : self_{rank, size, "fake"}, clock_(std::move(clock)), time_(std::move(time)) {}

  [[nodiscard]] const RankOf& self() const noexcept { return self_; }
  [[nodiscard]] SimulatedClock& clock() noexcept { return *clock_; }
  void revoke(const std::string& reason) noexcept {
    const std::lock_guard lock(mutex_);
    if (!revoked_) revoked_ = RevocationReason::parse(reason).by(self_.rank);
  }
  void check_usable(const ErrorContext& context) {
    const std::lock_guard lock(mutex_);
    if (revoked_) RevocationReason(*revoked_).raise(context);
  }

  void execute(const Call<Host>& call) {
    check_usable(self_.context(call));
    const bool to_self = call.kind == CollectiveKind::send ? call.to == self_.rank : call.from == self_.rank;
    if (traits_of(call.kind).message && call.kind != CollectiveKind::send_receive && to_self)
      throw_self_deadlock(self_.context(call));
    clock_->wait_until(begin(call));
  }
  [[nodiscard]] std::shared_ptr<Operation<Host>> start(const std::shared_ptr<State>& state, const Call<Host>& call,
                                                       HostStream) {
    return std::make_shared<Started>(state, begin(call), self_.context(call));
  }
  [[nodiscard]] std::shared_ptr<State> split(const SplitRule& rule, const std::source_location& location) {
    const auto context = self_.context("split", location);
    check_usable(context);
    if (!rule.of_all() && self_.size > 1)
      throw InvalidArgument("a fake rank cannot ask the others for their colors: use `groups`, which takes all of them",
                            context);
    std::vector<SplitRequest> all;
    for (int rank = 0; rank < self_.size; ++rank) all.push_back(rule.of(rank));
    const auto group = group_of(all, all[static_cast<std::size_t>(self_.rank)].color);
    const auto rank = std::ranges::find(group, self_.rank, &SplitRequest::rank) - group.begin();
    return State::make(static_cast<int>(rank), static_cast<int>(group.size()), clock_, time_);
  }

 private:
  struct Started final : Operation<Host> {
    Started(std::shared_ptr<State> owner, std::chrono::nanoseconds end, const ErrorContext& of)
        : state(std::move(owner)), due(end), context(of) {}
    bool test() noexcept override {
      SimulatedClock& clock = state->backend.clock();
      if (clock.now() >= due) return true;
      clock.wait_until(std::min(due, clock.now() + std::chrono::microseconds(1)));  // so that a loop of tests ends
      return false;
    }
    void complete() override {
      state->backend.check_usable(context);
      state->backend.clock().wait_until(due);
    }
    void abandon() noexcept override { state->revoke(abandoned_by_exception); }
    std::shared_ptr<State> state;
    std::chrono::nanoseconds due;
    ErrorContext context;
  };

  /// Completes a call as if all ranks passed equal operands. Returns when it leaves the link.
  [[nodiscard]] std::chrono::nanoseconds begin(const Call<Host>& call) {
    complete_as_equal(call);
    if (self_.size == 1 || time_ == nullptr) return clock_->now();
    return clock_->transfer(time_(call, self_.rank, self_.size));
  }
  void complete_as_equal(const Call<Host>& c) const {
    using enum CollectiveKind;
    const CallTraits& traits = traits_of(c.kind);
    if (c.kind == barrier || c.kind == broadcast || c.kind == send) return;
    if (traits.rooted && !traits.root_sends && self_.rank != c.root) return;
    const std::size_t width = element_width(c);
    // The block that this rank sends itself; nothing in a scatter whose root is another rank.
    const std::byte* own = c.send.bytes();
    std::size_t own_bytes = c.send.size_bytes();
    if (traits.blockwise) {
      const std::size_t equal =
          c.kind == all_to_all ? c.send.size() / static_cast<std::size_t>(self_.size) : c.receive.size();
      const bool sends_blocks = c.kind != scatter || self_.rank == c.root;
      own = sends_blocks ? own + block_offset(c.counts, equal, self_.rank) * width : nullptr;
      own_bytes = sends_blocks ? block_count(c.counts, equal, self_.rank) * width : 0;
    }
    if (traits.reduces) {
      const std::size_t begin = static_cast<std::size_t>(own - c.send.bytes()) / width;
      return reduce_equal(c.op, c.send.subspan(begin, own_bytes / width), c.receive.subspan(0, own_bytes / width),
                          self_.size);
    }
    if (c.kind != all_gather && c.kind != gather && c.kind != all_to_all)
      return copy_and_zero(c.receive.bytes(), c.receive.size_bytes(), own, own_bytes);
    const Counts counts = c.kind == all_to_all ? c.receive_counts : c.counts;
    const std::size_t equal = c.receive.size() / static_cast<std::size_t>(self_.size);
    std::byte* to = c.receive.bytes();
    for (int rank = 0; rank < self_.size; ++rank) {
      const std::size_t bytes = block_count(counts, equal, rank) * width;
      copy_and_zero(to, bytes, own, own_bytes);
      to += bytes;
    }
  }

  RankOf self_;
  std::shared_ptr<SimulatedClock> clock_;
  CallTime time_;
  std::mutex mutex_;
  std::optional<RevocationReason> revoked_;
};

}  // namespace detail

/// One rank of any number, in one process: to find out what a program does as rank 7,123 of 16,384.
///
/// It moves nothing and does not block. A call is checked as far as one rank can check it, and gives what it would give
/// if every other rank passed the same operands as this one: a sum is `size` times the operand, and each block that
/// other ranks send equals the block that this rank sends itself. Elements for which this rank has no counterpart are
/// zero: what `receive` receives, the block of a scatter on ranks other than its root, and the rest of longer blocks.
///
/// It keeps a simulated time: `compute` passes it, and a call occupies the rank's one link, in the order of the calls,
/// for the time that the constructor's function returns. Blocking calls and waits move the time to the end of the call;
/// a `test` of a call that is not complete takes 1 us.
/// Groups and other handles share the time and the link. `split(color, key)` is an InvalidArgument if there are several
/// ranks, since this one does not know the others' colors; `groups`, meshes and trainings work.
class FakeCommunicator : public detail::BasicCommunicator<FakeCommunicator, detail::FakeBackend> {
  using Base = detail::BasicCommunicator<FakeCommunicator, detail::FakeBackend>;
  friend Base;

 public:
  /// Returns the simulated time that a call occupies the link of rank `rank` of the communicator that makes it.
  using CallTime = detail::FakeBackend::CallTime;

  /// @param time  of calls; without it they take none
  /// @throws InvalidArgument unless 0 <= rank < size
  FakeCommunicator(int rank, int size, CallTime time = {},
                   const std::source_location& location = std::source_location::current())
      : Base(made(rank, size, std::move(time), location)) {}
  /// @param speed  of the link, for the bytes that `wire_bytes` returns
  FakeCommunicator(int rank, int size, const WireSpeed& speed,
                   const std::source_location& location = std::source_location::current())
      : FakeCommunicator(
            rank, size,
            [speed](const calls::Call<Host>& c, int r, int n) { return speed.duration(calls::wire_bytes(c, r, n)); },
            location) {}

  /// Returns the simulated time since construction.
  [[nodiscard]] std::chrono::nanoseconds now() const { return backend_of().clock().now(); }
  /// Returns how much of it this rank has waited for calls.
  [[nodiscard]] std::chrono::nanoseconds waited() const { return backend_of().clock().waited(); }
  /// Passes simulated time in which this rank computes.
  void compute(std::chrono::nanoseconds time) { backend_of().clock().compute(time); }

 private:
  using Base::Base;
  static std::shared_ptr<State> made(int rank, int size, CallTime time, const std::source_location& location) {
    if (rank < 0 || rank >= size)
      throw InvalidArgument("invalid rank " + std::to_string(rank) + ": must be in [0, " + std::to_string(size) + ")",
                            {"FakeCommunicator", "fake", rank, size, location});
    return State::make(rank, size, std::make_shared<detail::SimulatedClock>(), std::move(time));
  }
};

}  // namespace distx::inline DISTX_ABI
