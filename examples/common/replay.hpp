// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <distx/comm/decorators/decorated_pending.hpp>
#include <distx/comm/decorators/decorator.hpp>
#include <distx/comm/movement.hpp>
#include <distx/comm/reductions.hpp>
#include <distx/connect/spawn.hpp>
#include <distx/fake.hpp>
#include <distx/threads.hpp>

#include "calibration.hpp"

namespace examples {

/// Returns the processor time of this thread.
inline std::chrono::nanoseconds thread_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

/// The ranks of a job that replays on threads: they share memory, their operands, and the times at which they enter
/// calls.
class ReplayedTogether {
 public:
  /// The allocations of all ranks, in their order.
  class Memory {
   public:
    /// Returns allocation `index`, which the first rank to ask makes.
    [[nodiscard]] std::shared_ptr<distx::Buffer<std::byte>> at(std::size_t index, std::size_t bytes) {
      const std::lock_guard lock(mutex_);
      made_.resize(std::max(made_.size(), index + 1));
      auto memory = made_[index].lock();
      if (memory == nullptr || memory->size() != bytes) memory = std::make_shared<distx::Buffer<std::byte>>(bytes);
      made_[index] = memory;
      return memory;
    }

   private:
    std::mutex mutex_;
    std::vector<std::weak_ptr<distx::Buffer<std::byte>>> made_;
  };

  ReplayedTogether(distx::ThreadCommunicator comm, std::shared_ptr<Memory> memory)
      : comm_(std::move(comm)), memory_(std::move(memory)) {}

  [[nodiscard]] std::shared_ptr<distx::Buffer<std::byte>> allocate(std::size_t bytes) {
    return memory_->at(allocations_++, bytes);
  }
  /// Returns the operand of each rank. Collective.
  [[nodiscard]] std::vector<const void*> operands(const void* own) {
    std::vector<const void*> all(static_cast<std::size_t>(comm_.size()));
    distx::all_gather(comm_, std::span(&own, 1), all);
    return all;
  }
  /// Returns the latest of all ranks' times. Collective.
  [[nodiscard]] std::chrono::nanoseconds latest(std::chrono::nanoseconds now) {
    std::int64_t time = now.count();
    distx::all_reduce(comm_, time, distx::max);
    return std::chrono::nanoseconds(time);
  }

 private:
  distx::ThreadCommunicator comm_;
  std::shared_ptr<Memory> memory_;
  std::size_t allocations_ = 0;
};

/// A fake rank whose simulated time passes while its thread computes, and whose calls take the time of a calibration.
///
/// What the fake rank does itself takes no time. A started call takes part of its time from the computation, since it
/// is completed by a progress thread on the same processor.
class Replay : public distx::detail::Decorator<distx::FakeCommunicator> {
  using Fake = distx::FakeCommunicator;
  using Base = distx::detail::Decorator<Fake>;
  using Call = distx::calls::Call<>;
  using nanoseconds = std::chrono::nanoseconds;

  struct State {
    Calibration calibration;
    double contention;
    std::function<nanoseconds()> time;
    nanoseconds left{};  // `time` at the end of the last call
    nanoseconds computed{};
    bool starts = false;
    nanoseconds entered{};    // when this rank entered the call, in simulated time
    nanoseconds late{};       // by how much later the call begins because another rank enters it later
    nanoseconds link_free{};  // when the last call leaves the link
    std::vector<std::byte> zeros{};

    [[nodiscard]] nanoseconds of(const Call& call, int size, Calibration::Column column) const {
      return nanoseconds(std::llround(1e9 * calibration.seconds(call, size, column)));
    }
    /// Returns the time for which a call occupies the link.
    [[nodiscard]] nanoseconds occupy(const Call& call, int size) {
      const auto taken = late + of(call, size, starts ? &Calibration::Knot::started : &Calibration::Knot::blocking);
      link_free = std::max(link_free, entered) + taken;
      return taken;
    }
  };

  [[nodiscard]] static nanoseconds scaled(nanoseconds time, double factor) {
    return nanoseconds(std::llround(factor * static_cast<double>(time.count())));
  }

  /// Brackets what the fake rank does.
  class Inside {
   public:
    Inside(Fake& fake, State& state) : state_(state) { pass(fake, state); }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    ~Inside() { state_.left = state_.time(); }

    static void pass(Fake& fake, State& state) {
      const auto now = state.time();
      const auto passed = scaled(now - std::exchange(state.left, now), state.contention);
      state.computed += passed;
      fake.compute(passed);
    }

   private:
    State& state_;
  };

  struct Hook {
    std::shared_ptr<State> state{};
    std::shared_ptr<Fake> fake{};
    nanoseconds call{}, taken{};
    nanoseconds began_to_wait{};
    [[nodiscard]] bool ready() const { return true; }
    void waiting() {
      Inside::pass(*fake, *state);
      began_to_wait = fake->now();
    }
    void done() {
      // Computation has hidden the rest of the call, which has prolonged it.
      const auto waited = std::min(call, fake->now() - began_to_wait);
      if (call > nanoseconds(0))
        fake->compute(scaled(taken, static_cast<double>((call - waited).count()) / static_cast<double>(call.count())));
      state->left = state->time();
    }
    void failed() noexcept {}
    void abandoned() { done(); }
  };
  struct Started : distx::DecoratedPending<distx::Pending<distx::Host>, Hook> {
    using Inner = distx::DecoratedPending<distx::Pending<distx::Host>, Hook>;
    Started(distx::Pending<distx::Host> pending, const Hook& hook)
        : Inner(std::move(pending), hook), state(hook.state), fake(hook.fake) {}
    [[nodiscard]] bool test() {
      std::optional<Inside> inside;
      if (state) inside.emplace(*fake, *state);
      return Inner::test();
    }
    std::shared_ptr<State> state{};
    std::shared_ptr<Fake> fake{};
  };

 public:
  /// @param contention  the time that computation takes in the job, in terms of this thread's
  /// @param time  the time that this thread has computed
  /// @param together  if not null, the other ranks, which all replay
  Replay(int rank, int size, Calibration calibration, double contention = 1,
         std::function<nanoseconds()> time = thread_time, std::shared_ptr<ReplayedTogether> together = {})
      : Replay(rank, size, std::make_shared<State>(std::move(calibration), contention, std::move(time))) {
    together_ = std::move(together);
  }

  /// Returns the simulated time.
  [[nodiscard]] nanoseconds now() {
    const Inside inside(inner(), *state_);
    return inner().now();
  }
  /// Returns the part of it that was computed.
  [[nodiscard]] nanoseconds computed() const { return state_->computed; }

  void execute(const Call& call) {
    const Inside inside(inner(), *state_);
    if (call.consumer == nullptr || !passes_operands() || size() == 1) return execute_together(call);
    execute_together(distx::calls::erase(distx::calls::Barrier<>{}));
    consume(call);
    execute_together(distx::calls::erase(distx::calls::Barrier<>{}));
  }
  [[nodiscard]] Started start(const Call& call, distx::HostStream after = {}) {
    const Inside inside(inner(), *state_);
    state_->starts = true;
    wait_for_last(call);
    auto pending = inner().start(call, after);
    state_->starts = false;
    Hook hook{state_, std::make_shared<Fake>(inner().share())};
    if (size() > 1) {
      hook.call = state_->of(call, size(), &Calibration::Knot::started);
      hook.taken = state_->of(call, size(), &Calibration::Knot::taken);
    }
    return {std::move(pending), hook};
  }

  [[nodiscard]] bool passes_operands() const { return state_->calibration.shares_memory; }
  [[nodiscard]] std::optional<distx::detail::CommonMemory<distx::Host>> allocate_common(
      std::size_t bytes, const std::vector<distx::detail::ByteRange>&,
      std::source_location = std::source_location::current()) {
    if (!passes_operands()) return {};
    const auto memory =
        together_ == nullptr ? std::make_shared<distx::Buffer<std::byte>>(bytes) : together_->allocate(bytes);
    return distx::detail::CommonMemory<distx::Host>{memory->span(), memory, {}};
  }

  [[nodiscard]] Replay share() const {
    Replay same(inner().share(), groups(), state_);
    same.together_ = together_;
    return same;
  }
  [[nodiscard]] Replay split(int color, int key, std::source_location location = std::source_location::current()) {
    return split(distx::detail::SplitRule(color, key), location);
  }
  [[nodiscard]] Replay split(const distx::detail::SplitRule& rule, const std::source_location& location) {
    const Inside inside(inner(), *state_);
    Replay group(distx::detail::split_by(inner(), rule, location), std::make_shared<distx::detail::GroupCache>(),
                 state_);
    if (group.size() == size() && group.rank() == rank()) group.together_ = together_;
    return group;
  }

 private:
  Replay(int rank, int size, std::shared_ptr<State> state)
      : Base(Fake(rank, size, [state](const Call& call, int, int of) { return state->occupy(call, of); })),
        state_(std::move(state)) {
    state_->left = state_->time();
  }
  Replay(Fake fake, std::shared_ptr<distx::detail::GroupCache> cache, std::shared_ptr<State> state)
      : Base(std::move(fake), std::move(cache)), state_(std::move(state)) {}

  /// A collective begins when the last rank enters it, if all replay, and the link is free.
  void wait_for_last(const Call& call) {
    const auto now = state_->entered = inner().now();
    const bool together = together_ != nullptr && !distx::detail::traits_of(call.kind).message;
    const auto last = together ? together_->latest(now) : now;
    state_->late = std::max(last, state_->link_free) - std::max(now, state_->link_free);
  }
  void execute_together(const Call& call) {
    wait_for_last(call);
    inner().execute(call);
  }

  /// Updates by operands as ranks that share memory do: the other ranks', or zeros if these do not replay.
  void consume(const Call& call) {
    const std::size_t width = call.send.element_bytes(), count = call.receive.size();
    const std::byte* const begin = call.send.bytes() + distx::detail::block_offset(call.counts, count, rank()) * width;
    std::vector<const void*> operands;
    if (together_ != nullptr) {
      operands = together_->operands(call.send.bytes());
      for (auto& operand : operands) operand = static_cast<const std::byte*>(operand) + (begin - call.send.bytes());
    } else {
      state_->zeros.resize(std::max(state_->zeros.size(), count * width));
      operands.assign(static_cast<std::size_t>(size()), state_->zeros.data());
      operands[static_cast<std::size_t>(rank())] = begin;
    }
    state_->left = state_->time();
    call.consumer->consume(0, operands, count);
    Inside::pass(inner(), *state_);
  }

  std::shared_ptr<ReplayedTogether> together_;  ///< null of a group of some ranks
  std::shared_ptr<State> state_;
};

/// The predicted seconds of a step.
struct PredictedStep {
  double all = 0;
  double computed = 0;
  [[nodiscard]] double exposed() const { return std::max(0.0, all - computed); }
};

/// A replay next to others on this machine, which slow each other through its memory as the ranks of a job do.
struct Neighbor {
  Replay replay;
  distx::ThreadCommunicator all;

  /// Makes steps for about `seconds`, and returns the median of the neighbor that takes longest. Collective over `all`.
  template <class Step>
  [[nodiscard]] PredictedStep predict(double seconds, Step&& step) {
    std::vector<double> times, computed;
    std::size_t steps = 4;
    const auto before = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < steps; ++i) {
      distx::barrier(all);
      const auto begin = replay.now();
      const auto begin_computed = replay.computed();
      step();
      double took[] = {1e-9 * static_cast<double>((replay.now() - begin).count()),
                       1e-9 * static_cast<double>((replay.computed() - begin_computed).count())};
      distx::all_reduce(all, took, distx::max);
      times.push_back(took[0]);
      computed.push_back(took[1]);
      if (i != 2) continue;  // the first steps differ from the following ones
      double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count() / 3;
      distx::all_reduce(all, passed, distx::max);
      steps = std::clamp<std::size_t>(static_cast<std::size_t>(seconds / passed), 8, 400);
      times.clear();
      computed.clear();
    }
    const auto median = [](std::vector<double>& values) {
      std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
      return values[values.size() / 2];
    };
    return {median(times), median(computed)};
  }
};

/// Calls `body(neighbor)` on a thread for each of the first ranks of a job of `size`, from `rank` on. Their number is
/// that of the calibration's ranks; if this machine has fewer processors, computation takes longer in that proportion.
/// @param wait  whether ranks wait for each other in collectives, if all replay
template <class F>
void replay_neighbors(int rank, int size, const Calibration& calibration, F&& body, bool wait = true) {
  const int ranks = std::min(size, calibration.ranks);
  const int threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, ranks);
  const auto memory = std::make_shared<ReplayedTogether::Memory>();
  distx::spawn(threads, [&](auto& self) {
    distx::ThreadCommunicator all(self);
    std::shared_ptr<ReplayedTogether> together;
    if (wait && threads == size) together = std::make_shared<ReplayedTogether>(all.share(), memory);
    Neighbor neighbor{Replay((rank + self.rank()) % size, size, calibration, static_cast<double>(ranks) / threads,
                             thread_time, std::move(together)),
                      std::move(all)};
    body(neighbor);
  });
}

}  // namespace examples
