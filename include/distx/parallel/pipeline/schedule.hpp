// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "distx/core/error.hpp"

// A pipeline divides a model into stages, one after another, on different ranks. A schedule says in which order each
// rank works on the micro-batches of a step; it is a value, and checked when it is made.
namespace distx::inline DISTX_ABI::pipeline {

/// An action of a rank on one micro-batch in one of its stages.
enum class Action : std::uint8_t {
  receive_input,  ///< from the stage before
  forward,
  send_output,       ///< to the stage after
  receive_gradient,  ///< of the output, from the stage after
  backward,          ///< computes the gradients of input and weights
  backward_input,    ///< the first half of `backward`
  backward_weight,   ///< the second half
  send_gradient,     ///< of the input, to the stage before
};

/// Returns the action's name, such as "send output".
[[nodiscard]] constexpr std::string_view to_string(Action action) noexcept {
  constexpr std::array<std::string_view, 8> names{"receive input",    "forward",      "send output",
                                                  "receive gradient", "backward",     "backward input",
                                                  "backward weight",  "send gradient"};
  return names[static_cast<std::size_t>(action)];
}

/// One entry of a rank's list.
struct Step {
  Action action = Action::forward;
  int micro_batch = 0;
  int chunk = 0;  ///< which of the rank's stages
  friend constexpr bool operator==(const Step&, const Step&) = default;
};
/// The steps of every rank, in order.
using Steps = std::vector<std::vector<Step>>;

/// The size of a schedule. Stage s is chunk s / ranks of rank s % ranks.
struct Shape {
  int ranks = 1;
  int micro_batches = 1;
  int chunks = 1;  ///< the stages of each rank
  [[nodiscard]] constexpr int stages() const noexcept { return ranks * chunks; }
};

}  // namespace distx::inline DISTX_ABI::pipeline

namespace distx::inline DISTX_ABI::detail {

/// The fault of a step of a schedule.
enum class ScheduleFault : std::uint8_t {
  none,
  outside,         ///< of the schedule's micro-batches, chunks and ranks
  repeated,        ///< or both halves of a backward pass and the whole
  unneeded,        ///< a message before the first stage or after the last one
  too_early,       ///< before a step that it needs
  out_of_order,    ///< messages, or backward passes: the sums of weight gradients depend on their order
  too_many_alive,  ///< activations
  never_sent,      ///< its message
  deadlock,        ///< its message is sent after a step that waits for this rank
  missing,
};

/// Checks a schedule by simulation: all ranks make their steps, and sent messages wait until they are received.
class ScheduleCheck {
 public:
  using Action = pipeline::Action;
  using Step = pipeline::Step;
  struct Found {
    ScheduleFault fault = ScheduleFault::none;
    int rank = 0;
    Step step{};
    std::size_t index = 0;  ///< of the step in the rank's list
  };

  constexpr ScheduleCheck(const pipeline::Shape& shape, int most_alive)
      : shape_(shape),
        most_alive_(most_alive),
        done_(static_cast<std::size_t>(shape.stages()) * static_cast<std::size_t>(shape.micro_batches), 0U),
        input_order_(static_cast<std::size_t>(shape.stages()), 0),
        weight_order_(input_order_),
        sent_(2 * static_cast<std::size_t>(shape.stages())),
        received_(sent_.size(), 0U),
        alive_(static_cast<std::size_t>(shape.ranks), 0),
        peak_(alive_.size(), 0) {}

  /// Makes the steps of all ranks, and returns the first one that is wrong.
  [[nodiscard]] constexpr Found find(const pipeline::Steps& steps) {
    std::vector<std::size_t> next(steps.size(), 0U);
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t rank = 0; rank < steps.size(); ++rank)
        for (; next[rank] < steps[rank].size(); ++next[rank], progress = true) {
          const Step& step = steps[rank][next[rank]];
          const auto fault = make(static_cast<int>(rank), step);
          if (fault == ScheduleFault::deadlock) break;  // or not sent yet
          if (fault != ScheduleFault::none) return {fault, static_cast<int>(rank), step, next[rank]};
        }
    }
    for (std::size_t rank = 0; rank < steps.size(); ++rank) {
      if (next[rank] == steps[rank].size()) continue;
      const Step& step = steps[rank][next[rank]];
      const auto& from = steps[static_cast<std::size_t>(peer(shape_, static_cast<int>(rank), step))];
      const bool sent = std::find(from.begin(), from.end(), counterpart(static_cast<int>(rank), step)) != from.end();
      return {sent ? ScheduleFault::deadlock : ScheduleFault::never_sent, static_cast<int>(rank), step, next[rank]};
    }
    for (int stage = 0; stage < shape_.stages(); ++stage)
      for (int micro_batch = 0; micro_batch < shape_.micro_batches; ++micro_batch)
        for (const auto action : {Action::forward, Action::send_output, Action::backward, Action::send_gradient})
          if (needed(stage, action) && !has(stage, micro_batch, action))
            return {ScheduleFault::missing, stage % shape_.ranks, {action, micro_batch, stage / shape_.ranks}};
    return {};
  }
  /// Returns the largest number of micro-batches whose activations each rank has kept at once.
  [[nodiscard]] constexpr const std::vector<int>& peak() const noexcept { return peak_; }

  /// Returns the rank at the other end of a message. @pre the step is a message of the schedule
  [[nodiscard]] static constexpr int peer(const pipeline::Shape& shape, int rank, const Step& step) noexcept {
    return (rank + shape.ranks + (to_next_stage(step.action) ? 1 : -1)) % shape.ranks;
  }
  /// Returns the step of the peer that sends what this one receives.
  [[nodiscard]] constexpr Step counterpart(int rank, const Step& step) const noexcept {
    const int stage = step.chunk * shape_.ranks + rank + (to_next_stage(step.action) ? 1 : -1);
    return {step.action == Action::receive_input ? Action::send_output : Action::send_gradient, step.micro_batch,
            stage / shape_.ranks};
  }

 private:
  static constexpr bool to_next_stage(Action action) noexcept {
    return action == Action::send_output || action == Action::receive_gradient;
  }
  [[nodiscard]] constexpr bool needed(int stage, Action action) const noexcept {
    if (action == Action::receive_input || action == Action::send_gradient) return stage > 0;
    if (to_next_stage(action)) return stage + 1 < shape_.stages();
    return true;
  }
  static constexpr unsigned bit(Action action) noexcept { return 1U << static_cast<unsigned>(action); }
  [[nodiscard]] constexpr unsigned& done(int stage, int micro_batch) noexcept {
    return done_[static_cast<std::size_t>(stage) * static_cast<std::size_t>(shape_.micro_batches) +
                 static_cast<std::size_t>(micro_batch)];
  }
  /// Whether the action, or for `backward` both of its halves, is done.
  [[nodiscard]] constexpr bool has(int stage, int micro_batch, Action action) noexcept {
    constexpr unsigned halves = bit(Action::backward_input) | bit(Action::backward_weight);
    const unsigned is = done(stage, micro_batch);
    return (is & bit(action)) != 0 || (action == Action::backward && (is & halves) == halves);
  }
  /// @return deadlock for a message that has not been sent yet
  constexpr ScheduleFault make(int rank, const Step& step) {
    const Action action = step.action;
    const int micro_batch = step.micro_batch, chunk = step.chunk;
    if (micro_batch < 0 || micro_batch >= shape_.micro_batches || chunk < 0 || chunk >= shape_.chunks)
      return ScheduleFault::outside;
    const int stage = chunk * shape_.ranks + rank;
    const auto at = static_cast<std::size_t>(stage);
    const auto is_done = [&](Action other) { return (done(stage, micro_batch) & bit(other)) != 0; };
    if (!needed(stage, action)) return ScheduleFault::unneeded;
    const bool half = action == Action::backward_input || action == Action::backward_weight;
    if (is_done(action) || (half && is_done(Action::backward)) ||
        (action == Action::backward && is_done(Action::backward_input)))
      return ScheduleFault::repeated;
    const auto lacks = [&](Action other) { return needed(stage, other) && !is_done(other); };
    const bool computes_input = action == Action::backward || action == Action::backward_input;
    if ((action == Action::forward && lacks(Action::receive_input)) ||
        (action == Action::send_output && lacks(Action::forward)) ||
        (computes_input && (lacks(Action::forward) || lacks(Action::receive_gradient))) ||
        (action == Action::backward_weight && lacks(Action::backward_input)) ||
        (action == Action::send_gradient && lacks(Action::backward) && lacks(Action::backward_input)))
      return ScheduleFault::too_early;
    if (action == Action::receive_input || action == Action::receive_gradient) {
      const std::size_t queue = 2 * at + (action == Action::receive_input ? 0 : 1);
      if (received_[queue] == sent_[queue].size()) return ScheduleFault::deadlock;  // or not sent yet
      if (sent_[queue][received_[queue]++] != micro_batch) return ScheduleFault::out_of_order;
    }
    if (action == Action::forward) {
      int &alive = alive_[static_cast<std::size_t>(rank)], &peak = peak_[static_cast<std::size_t>(rank)];
      if (++alive > most_alive_) return ScheduleFault::too_many_alive;
      peak = std::max(peak, alive);
    }
    if (action == Action::send_output) sent_[2 * (at + 1)].push_back(micro_batch);
    if (action == Action::send_gradient) sent_[2 * (at - 1) + 1].push_back(micro_batch);
    if (computes_input && input_order_[at]++ != micro_batch) return ScheduleFault::out_of_order;
    if (action == Action::backward || action == Action::backward_weight) {
      if (weight_order_[at]++ != micro_batch) return ScheduleFault::out_of_order;
      --alive_[static_cast<std::size_t>(rank)];
    }
    done(stage, micro_batch) |= bit(action);
    return ScheduleFault::none;
  }

  pipeline::Shape shape_;
  int most_alive_;
  std::vector<unsigned> done_;                   // actions of each stage and micro-batch
  std::vector<int> input_order_, weight_order_;  // the next micro-batch of each stage
  std::vector<std::vector<int>> sent_;           // inputs and gradients for each stage
  std::vector<std::size_t> received_;
  std::vector<int> alive_, peak_;
};

}  // namespace distx::inline DISTX_ABI::detail

namespace distx::inline DISTX_ABI::pipeline {

/// How long the steps of one chunk take, in any unit.
struct Durations {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;  ///< `backward` takes the sum of both
  double message = 0;          ///< from the end of a send to the earliest end of its receive
};

/// When a rank made a step.
struct Interval {
  Step step{};
  double begin = 0, end = 0;
};
/// The intervals of each rank, in order.
using Timeline = std::vector<std::vector<Interval>>;

/// Returns the begin of the first step of all ranks; 0 without steps.
[[nodiscard]] inline double begin_of(const Timeline& timeline) {
  double first = std::numeric_limits<double>::infinity();
  for (const auto& rank : timeline)
    if (!rank.empty()) first = std::min(first, rank.front().begin);
  return first == std::numeric_limits<double>::infinity() ? 0 : first;
}
/// Returns the time from the first step to the end of the last one, of all ranks; 0 without steps.
[[nodiscard]] inline double length(const Timeline& timeline) {
  double last = begin_of(timeline);
  for (const auto& rank : timeline)
    if (!rank.empty()) last = std::max(last, rank.back().end);
  return last - begin_of(timeline);
}
/// Whether the action sends or receives.
[[nodiscard]] constexpr bool is_message(Action action) noexcept {
  return action == Action::receive_input || action == Action::send_output || action == Action::receive_gradient ||
         action == Action::send_gradient;
}
/// Returns how long a rank does not compute during a timeline.
[[nodiscard]] inline double idle(const Timeline& timeline, int rank) {
  double time = length(timeline);
  for (const auto& interval : timeline[static_cast<std::size_t>(rank)])
    if (!is_message(interval.step.action)) time -= interval.end - interval.begin;
  return time;
}

/// The order in which the ranks of a pipeline work on the micro-batches of a step, for models whose backward pass is
/// one call.
///
/// A valid schedule has each micro-batch once in every stage. Sends match receives in their order, and no rank waits
/// for itself. A stage's backward passes are in the order of the micro-batches, so the sums of its weight gradients
/// have the bits of a run without a pipeline.
class Schedule {
 public:
  /// Takes a schedule of your own; `schedules.hpp` makes the usual ones.
  /// @param name  for error messages; it must outlive the schedule
  /// @param steps  of each rank
  /// @param most_alive  the largest number of micro-batches whose activations a rank may keep at once
  /// @throws InvalidArgument that names the first wrong step
  constexpr Schedule(std::string_view name, const Shape& shape, Steps steps,
                     int most_alive = std::numeric_limits<int>::max())
      : name_(name), shape_(shape), steps_(std::move(steps)) {
    if (shape.ranks < 1 || shape.micro_batches < 1 || shape.chunks < 1 ||
        steps_.size() != static_cast<std::size_t>(shape.ranks))
      reject_shape();
    detail::ScheduleCheck check(shape_, most_alive);
    if (const auto found = check.find(steps_); found.fault != detail::ScheduleFault::none) reject(found);
    peak_ = check.peak();
  }

  /// Returns the name, such as "1F1B".
  [[nodiscard]] constexpr std::string_view name() const noexcept { return name_; }
  [[nodiscard]] constexpr const Shape& shape() const noexcept { return shape_; }
  /// Returns the steps of one rank, in order.
  [[nodiscard]] constexpr const std::vector<Step>& steps(int rank) const {
    return steps_[static_cast<std::size_t>(rank)];
  }
  /// Returns the largest number of micro-batches whose activations the rank keeps at once, summed over its chunks.
  [[nodiscard]] constexpr int peak_alive(int rank) const { return peak_[static_cast<std::size_t>(rank)]; }
  /// Returns the rank that a message of `rank` comes from or goes to.
  [[nodiscard]] constexpr int peer(int rank, const Step& step) const {
    return detail::ScheduleCheck::peer(shape_, rank, step);
  }
  /// Whether some backward pass is split into its halves.
  [[nodiscard]] constexpr bool splits_backward() const noexcept {
    return std::any_of(steps_.begin(), steps_.end(), [](const auto& of_rank) {
      return std::any_of(of_rank.begin(), of_rank.end(),
                         [](const Step& step) { return step.action == Action::backward_input; });
    });
  }

  /// Returns when each rank makes its steps, if they take `durations`.
  [[nodiscard]] Timeline timeline(const Durations& durations) const;
  /// Returns how long a rank does not compute in a step: (ranks - 1) times the time of a micro-batch's forward and
  /// backward pass for GPipe (Huang et al., 2019) and 1F1B (Narayanan et al., 2019), and of a chunk's for interleaved
  /// ones. For ZB-H1 (Qi et al., 2023) it is (ranks - 1) (forward + backward_input - backward_weight), if
  /// backward_weight exceeds neither of the others.
  [[nodiscard]] double bubble(int rank, const Durations& durations) const { return idle(timeline(durations), rank); }

 private:
  [[noreturn]] void reject_shape() const {
    throw InvalidArgument("a schedule of " + std::to_string(shape_.ranks) + " ranks, " +
                              std::to_string(shape_.micro_batches) + " micro-batches and " +
                              std::to_string(shape_.chunks) + " chunks, with steps of " +
                              std::to_string(steps_.size()) + " ranks: give positive numbers, and a list for each rank",
                          {.operation = "Schedule"});
  }
  [[noreturn]] void reject(const detail::ScheduleCheck::Found& found) const;

  std::string_view name_;
  Shape shape_;
  Steps steps_;
  std::vector<int> peak_{};
};

/// A schedule that splits backward passes into halves; pipelines of stages that cannot do this do not compile.
class SplitSchedule {
 public:
  explicit constexpr SplitSchedule(Schedule schedule) : schedule_(std::move(schedule)) {}
  [[nodiscard]] constexpr const Schedule& schedule() const noexcept { return schedule_; }

 private:
  Schedule schedule_;
};

/// Returns the schedule itself.
[[nodiscard]] constexpr const Schedule& plain(const Schedule& schedule) noexcept { return schedule; }
[[nodiscard]] constexpr const Schedule& plain(const SplitSchedule& schedule) noexcept { return schedule.schedule(); }

/// A Schedule or a SplitSchedule.
template <class S>
concept AnySchedule = requires(const S& schedule) { plain(schedule); };

inline void Schedule::reject(const detail::ScheduleCheck::Found& found) const {
  constexpr std::array<std::string_view, 10> faults{
      "",
      "is outside the schedule's micro-batches and chunks",
      "is repeated",
      "has no peer: the first stage has none before it, the last one none after it",
      "precedes a step that it depends on",
      "is out of order: a stage makes its backward passes in the order of the micro-batches, and receives messages in "
      "the order in which they are sent",
      "keeps more activations than allowed",
      "waits for a message that is never sent",
      "waits for a message whose sender waits for this rank",
      "is missing"};
  static_assert(faults.size() == static_cast<std::size_t>(detail::ScheduleFault::missing) + 1);
  std::string text = "schedule '" + std::string(name_) + "': ";
  if (found.fault != detail::ScheduleFault::missing) text += "step " + std::to_string(found.index) + ", ";
  text += std::string(to_string(found.step.action)) + " of micro-batch " + std::to_string(found.step.micro_batch);
  if (shape_.chunks > 1) text += " in chunk " + std::to_string(found.step.chunk);
  throw InvalidArgument(text + " of rank " + std::to_string(found.rank) + " " +
                            std::string(faults[static_cast<std::size_t>(found.fault)]),
                        {.operation = "Schedule"});
}

inline Timeline Schedule::timeline(const Durations& durations) const {
  const auto ranks = steps_.size();
  Timeline made(ranks);
  std::vector<double> now(ranks);
  std::vector<std::vector<double>> sent(2 * static_cast<std::size_t>(shape_.stages()));  // by receiving stage
  std::vector<std::size_t> received(sent.size());
  const double input = durations.backward_input, weight = durations.backward_weight;
  const std::array<double, 8> times{0, durations.forward, 0, 0, input + weight, input, weight, 0};  // by action
  const auto perform = [&](std::size_t rank, const Step& step) {
    const auto stage = static_cast<std::size_t>(step.chunk) * ranks + rank;
    const double begin = now[rank];
    double end = begin + times[static_cast<std::size_t>(step.action)];
    if (step.action == Action::receive_input || step.action == Action::receive_gradient) {
      const std::size_t queue = 2 * stage + (step.action == Action::receive_input ? 0 : 1);
      if (received[queue] == sent[queue].size()) return false;
      end = std::max(begin, sent[queue][received[queue]++] + durations.message);
    }
    if (step.action == Action::send_output) sent[2 * (stage + 1)].push_back(begin);
    if (step.action == Action::send_gradient) sent[2 * (stage - 1) + 1].push_back(begin);
    made[rank].push_back({step, begin, end});
    now[rank] = end;
    return true;
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      while (made[rank].size() < steps_[rank].size() && perform(rank, steps_[rank][made[rank].size()])) progress = true;
  }
  return made;
}

}  // namespace distx::inline DISTX_ABI::pipeline
