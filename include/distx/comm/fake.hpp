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
  [[nodiscard]] bool passed(duration due) const { return now() >= due; }
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

/// Copies as many elements as both blocks have, and zeros the rest of the target.
inline void copy_and_zero(std::byte* to, std::size_t to_bytes, const std::byte* from, std::size_t from_bytes) noexcept {
  const std::size_t common = std::min(to_bytes, from_bytes);
  copy_bytes(to, from, common);
  if (to_bytes > common) std::memset(to + common, 0, to_bytes - common);
}

/// Reduces `ranks` equal operands, by doubling.
inline void reduce_equal(const AnyOp& op, const std::byte* operand, std::byte* target, std::size_t bytes,
                         std::size_t element_bytes, int ranks) {
  constexpr std::size_t block = 4096;
  alignas(16) std::array<std::byte, block> power, sum;
  const AnyOp step = op.unfinished();
  for (std::size_t begin = 0; begin < bytes; begin += block) {
    const std::size_t part = std::min(block, bytes - begin), count = part / element_bytes;
    const auto add = [&](const AnyOp& by, std::byte* to, std::initializer_list<const void*> operands) {
      void* const targets[] = {to};
      by.reduce(targets, 1, operands.begin(), operands.size(), count, ranks);
    };
    std::memcpy(power.data(), operand + begin, part);
    bool empty = true;
    for (auto left = static_cast<unsigned>(ranks); left != 0; left >>= 1U) {
      if ((left & 1U) != 0 && empty)
        std::memcpy(sum.data(), power.data(), part);
      else if ((left & 1U) != 0)
        add(step, sum.data(), {sum.data(), power.data()});
      empty = empty && (left & 1U) == 0;
      if (left > 1) add(step, power.data(), {power.data(), power.data()});
    }
    add(op, target + begin, {sum.data()});
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
    const ErrorContext context{"split", self_.backend, self_.rank, self_.size, location};
    check_usable(context);
    if (!rule.of_all() && self_.size > 1)
      throw InvalidArgument("a fake rank cannot ask the others for their colors: use `groups`, which takes all of them",
                            context);
    std::vector<SplitRequest> all;
    for (int rank = 0; rank < self_.size; ++rank) all.push_back(rule.of(self_.size == 1 ? self_.rank : rank));
    const auto group = group_of(all, all[static_cast<std::size_t>(self_.rank)].color);
    const auto rank = std::ranges::find(group, self_.rank, &SplitRequest::rank) - group.begin();
    return State::make(static_cast<int>(rank), static_cast<int>(group.size()), clock_, time_);
  }

 private:
  struct Started final : Operation<Host> {
    Started(std::shared_ptr<State> owner, std::chrono::nanoseconds end, const ErrorContext& of)
        : state(std::move(owner)), due(end), context(of) {}
    bool test() noexcept override { return state->backend.clock().passed(due); }
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
    const bool moves = self_.size > 1 && time_ != nullptr;
    return clock_->transfer(moves ? time_(call, self_.rank, self_.size) : std::chrono::nanoseconds(0));
  }
  void complete_as_equal(const Call<Host>& c) const;

  RankOf self_;
  std::shared_ptr<SimulatedClock> clock_;
  CallTime time_;
  std::mutex mutex_;
  std::optional<RevocationReason> revoked_;
};

inline void FakeBackend::complete_as_equal(const Call<Host>& c) const {
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
    if (own_bytes != 0) reduce_equal(c.op, own, c.receive.bytes(), own_bytes, width, self_.size);
    return;
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

}  // namespace detail

/// One rank of any number, in one process: to find out what a program does as rank 7,123 of 16,384.
///
/// It moves nothing and never waits. A call is checked as far as one rank can check it, and gives what it would give if
/// every other rank passed the same operands as this one: a sum is `size` times the operand, and each block that other
/// ranks send equals the block that this rank sends itself. Elements for which this rank has no counterpart are zero:
/// messages, the block of a scatter on ranks other than its root, and the rest of longer blocks.
///
/// It keeps a simulated time: `compute` passes it, and a call occupies the rank's one link, in the order of the calls,
/// for the time that the constructor's function returns. Blocking calls and waits move the time to the end of the call.
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
