// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <chrono>
#include <list>
#include <optional>
#include <source_location>
#include <span>
#include <variant>

#include "distx/comm/point_to_point.hpp"
#include "distx/core/detail/revoke_on_exception.hpp"
#include "distx/parallel/detail/engine/checks/consistency.hpp"
#include "distx/parallel/layers/activations.hpp"
#include "distx/parallel/pipeline/schedules.hpp"
#include "distx/tensor/dist_tensor.hpp"

namespace distx::inline DISTX_ABI::pipeline {

/// A stage of a model in a pipeline.
///
/// - `edge` is the DistTensor between stages. `edge_spec()` returns its mesh and extents, the same for every
/// micro-batch.
/// - `forward(input, micro_batch, training)` returns a layers::Forward of the output and `activations`. The first stage
///   has no input, the last one no output.
/// - `backward(activations, gradient, micro_batch, training)` takes the output's gradient, declares those of the
/// weights
///   ready, and returns the input's. The last stage gets none, the first one returns none.
template <class S, class Training>
concept PipelineStage = requires(const S& stage, std::optional<typename S::edge> tensor, typename S::activations kept,
                                 int micro_batch, Training& training) {
  requires DistributedTensor<typename S::edge>;
  { stage.edge_spec() } -> std::convertible_to<typename S::edge::spec_type>;
  {
    stage.forward(std::move(tensor), micro_batch, training)
  } -> std::same_as<layers::Forward<std::optional<typename S::edge>, typename S::activations>>;
  {
    stage.backward(std::move(kept), std::move(tensor), micro_batch, training)
  } -> std::same_as<std::optional<typename S::edge>>;
};

/// A stage whose backward pass has two halves: `backward_input(activations, gradient, micro_batch, training)` returns
/// the gradient of the input and a `weight_work`, which `backward_weight(work, micro_batch, training)` takes.
/// DeferredWeights makes both from `backward`.
template <class S, class Training>
concept SplitBackward = PipelineStage<S, Training> &&
                        requires(const S& stage, std::optional<typename S::edge> tensor, typename S::activations kept,
                                 typename S::weight_work work, int micro_batch, Training& training) {
                          {
                            stage.backward_input(std::move(kept), std::move(tensor), micro_batch, training)
                          } -> std::same_as<std::pair<std::optional<typename S::edge>, typename S::weight_work>>;
                          stage.backward_weight(std::move(work), micro_batch, training);
                        };

}  // namespace distx::inline DISTX_ABI::pipeline

namespace distx::inline DISTX_ABI::detail {

/// The type of a stage's deferred work; monostate without one.
template <class S>
struct WeightWorkOf {
  using type = std::monostate;
};
template <class S>
  requires requires { typename S::weight_work; }
struct WeightWorkOf<S> {
  using type = typename S::weight_work;
};

}  // namespace distx::inline DISTX_ABI::detail

namespace distx::inline DISTX_ABI::pipeline {

/// Runs the forward and backward passes of a step by a schedule, on the stages that this rank has.
///
/// Outputs and gradients go to the neighbouring stages as messages with the tags 0 to 2 * chunks - 1; sends are
/// asynchronous. A weight is declared ready once for each micro-batch, without scopes of `micro_batch`: list the
/// weights with StageUse. An error on one rank revokes the communicator along the pipeline and the stage's mesh; then
/// the pipeline is of no further use. In the host's memory.
///
///     distx::Mesh<Pipe, Rest> grid(comm, {2, 4});
///     auto& along = grid.along<Pipe>();                           // the ranks that hold the stages
///     distx::Mesh<Data, Model> mesh(grid.along<Rest>(), {2, 2});  // those of this stage
///     …
///     distx::pipeline::Pipeline step(along, distx::pipeline::one_forward_one_backward(2, 8), stage, training);
///     step.run();
///     training.step({.learning_rate = 1e-3});
template <class Stage, class Training>
class Pipeline {
  static_assert(PipelineStage<Stage, Training>,
                "distx::pipeline::Pipeline: the stage does not have edge, edge_spec(), activations, forward and "
                "backward; see pipeline::PipelineStage");
  using Edge = typename Stage::edge;
  using Space = typename Edge::space;
  static_assert(HostAccessible<Space>,
                "distx::pipeline::Pipeline: pipelines support tensors in the host's memory only");
  using T = typename Edge::value_type;
  using Work = typename detail::WeightWorkOf<Stage>::type;
  using Clock = std::chrono::steady_clock;
  using here = std::source_location;

 public:
  /// Checks that the ranks of `along` have the same schedule. Collective over `along`. Other ranks of the stage's mesh
  /// need the same schedule too, which is not checked.
  /// @param along  rank r of it has stages r, r + ranks, …
  /// @param stages  one for each chunk of the schedule, in order; they outlive this object, and so does `training`
  /// @throws InvalidArgument if the numbers of ranks or stages differ from the schedule's
  /// @throws MismatchError on every rank if the schedules, or the tensors between stages, differ
  template <AnySchedule S>
  Pipeline(AnyCommunicator<Space>& along, const S& schedule, std::span<const Stage> stages, Training& training,
           const here& location = here::current())
      : Pipeline(Unchecked(), along, plain(schedule), stages, training, location) {
    if constexpr (std::same_as<S, SplitSchedule>) {
      constexpr bool splits = SplitBackward<Stage, Training>;  // named, so that compilers explain no more
      static_assert(
          splits,
          "distx::pipeline::Pipeline: this schedule splits backward passes, and the stage has no backward_input and "
          "backward_weight; see pipeline::SplitBackward, or choose another schedule");
    } else if (schedule_.splits_backward()) {
      throw InvalidArgument("schedule '" + std::string(schedule_.name()) +
                                "' splits backward passes: make a SplitSchedule of it, whose pipeline compiles for "
                                "stages that can",
                            context("Pipeline", location));
    }
  }
  template <AnySchedule S>
  Pipeline(AnyCommunicator<Space>& along, const S& schedule, const Stage& stage, Training& training,
           const here& location = here::current())
      : Pipeline(along, schedule, std::span(&stage, 1), training, location) {}
  template <AnySchedule S>
  Pipeline(AnyCommunicator<Space>&, const S&, const Stage&&, Training&, const here& = {}) = delete;

  /// Makes the forward and backward passes of all micro-batches, by the schedule. Collective over all stages.
  /// @throws InvalidState for a stage whose results are not those of its position; errors of the stages and of messages
  void run(const here& location = here::current()) { run_steps(location, true); }
  /// Makes the forward passes of all micro-batches, in their order, and keeps no activations. Collective over all
  /// stages.
  /// @throws as `run`
  void run_forward(const here& location = here::current()) { run_steps(location, false); }

  /// Returns when each rank made each step of the last `run`, in seconds after its begin. Collective over `along`.
  /// @pre `run` has returned
  [[nodiscard]] Timeline timeline(const here& location = here::current()) {
    Timeline all;
    for (int rank = 0; rank < schedule_.shape().ranks; ++rank) {
      const auto& steps = schedule_.steps(rank);
      std::vector<double> times;
      if (rank == this->rank())
        for (const auto& interval : intervals_) times.insert(times.end(), {interval.begin, interval.end});
      times.resize(2 * steps.size());
      broadcast(along_, times, rank, location);
      auto& of_rank = all.emplace_back();
      for (std::size_t i = 0; i < steps.size(); ++i) of_rank.push_back({steps[i], times[2 * i], times[2 * i + 1]});
    }
    return all;
  }

 private:
  struct Unchecked {};
  /// One micro-batch in one stage.
  struct InFlight {
    std::optional<Edge> input{}, output{}, gradient{}, input_gradient{};
    std::optional<typename Stage::activations> kept{};
    std::optional<Work> work{};
  };
  struct Sent {
    Edge tensor;
    std::optional<decltype(start_send(std::declval<AnyCommunicator<Space>&>(), std::declval<Span<const T, Space>&>(),
                                      0))>
        pending{};
  };

  Pipeline(Unchecked, AnyCommunicator<Space>& along, Schedule schedule, std::span<const Stage> stages,
           Training& training, const here& location)
      : along_(along.share()),
        schedule_(std::move(schedule)),
        stages_(stages),
        training_(training),
        spec_(spec_of(stages, location)) {
    guarded([&] {
      const auto& shape = schedule_.shape();
      if (shape.ranks != along_.size() || shape.chunks != static_cast<int>(stages.size()))
        throw InvalidArgument("schedule '" + std::string(schedule_.name()) + "' is for " + std::to_string(shape.ranks) +
                                  " ranks with " + std::to_string(shape.chunks) + " stages each, and this rank has " +
                                  std::to_string(stages.size()) + " of " + std::to_string(along_.size()) + " ranks",
                              context("Pipeline", location));
      compare(location);
    });
  }

  [[nodiscard]] typename Edge::spec_type spec_of(std::span<const Stage> stages, const here& location) {
    if (!stages.empty()) return stages.front().edge_spec();
    const InvalidArgument error("a rank of a pipeline has no stage: give one for each chunk",
                                context("Pipeline", location));
    along_.revoke(error.what());
    throw error;
  }
  void compare(const here& location) {
    const auto& shape = schedule_.shape();
    detail::ConsistencyRecord record;
    record.add("the schedule", std::string(schedule_.name()) + " of " + std::to_string(shape.micro_batches) +
                                   " micro-batches, " + std::to_string(shape.chunks) + " stages on each rank");
    for (int r = 0; r < shape.ranks; ++r)
      for (std::size_t i = 0; i < schedule_.steps(r).size(); ++i) {
        const auto& step = schedule_.steps(r)[i];
        record.add("step " + std::to_string(i) + " of rank " + std::to_string(r),
                   std::string(to_string(step.action)) + " of micro-batch " + std::to_string(step.micro_batch) +
                       " in chunk " + std::to_string(step.chunk));
      }
    record.add("the tensor between stages", detail::to_string(spec_.extents()) + ", of it " +
                                                detail::to_string(spec_.local_extents()) + " of " +
                                                std::string(name_of(element_type<T>)) + " on each rank");
    detail::check_consistency(along_, record, "give every rank the same schedule and the same tensors",
                              context("Pipeline", location));
  }

  [[nodiscard]] int rank() const noexcept { return along_.rank(); }
  [[nodiscard]] ErrorContext context(std::string_view operation, const here& location) const {
    return {.operation = operation, .rank = along_.rank(), .size = along_.size(), .location = location};
  }
  static constexpr bool is_forward(Action action) noexcept {
    return action == Action::receive_input || action == Action::forward || action == Action::send_output;
  }
  void run_steps(const here& location, bool trains) {
    location_ = location;
    sent_.clear();
    in_flight_.clear();
    in_flight_.resize(stages_.size() * static_cast<std::size_t>(schedule_.shape().micro_batches));
    if (trains) intervals_.clear();
    begin_ = Clock::now();
    guarded([&] {
      for (const auto& step : schedule_.steps(rank()))
        if (trains || is_forward(step.action)) perform(step, trains);
      for (auto& one : sent_) one.pending->wait();
      sent_.clear();
    });
  }
  template <class F>
  void guarded(F&& f) {
    detail::revoke_on_exception(f, [&](const auto& reason) {
      along_.revoke(reason.published());
      detail::in_space<Space>(detail::state_of(spec_.mesh())).revoke(reason.published());
    });
  }

  [[nodiscard]] InFlight& in_flight(int chunk, int micro_batch) {
    return in_flight_[static_cast<std::size_t>(chunk) * static_cast<std::size_t>(schedule_.shape().micro_batches) +
                      static_cast<std::size_t>(micro_batch)];
  }
  void perform(const Step& step, bool trains) {
    const auto now = [&] { return std::chrono::duration<double>(Clock::now() - begin_).count(); };
    const double begin = now();
    auto& at = in_flight(step.chunk, step.micro_batch);
    const auto& stage = stages_[static_cast<std::size_t>(step.chunk)];
    switch (step.action) {
      case Action::receive_input:
        receive(step, at.input);
        break;
      case Action::receive_gradient:
        receive(step, at.gradient);
        break;
      case Action::send_output:
        send(step, std::exchange(at.output, {}));
        break;
      case Action::send_gradient:
        send(step, std::exchange(at.input_gradient, {}));
        break;
      case Action::forward: {
        auto [output, kept] = stage.forward(std::exchange(at.input, {}), step.micro_batch, training_);
        at.output = checked(std::move(output), number(step) + 1 < schedule_.shape().stages(), "forward", "an output");
        if (trains) at.kept.emplace(std::move(kept));
        break;
      }
      case Action::backward:
        at.input_gradient =
            checked(stage.backward(take(at.kept), std::exchange(at.gradient, {}), step.micro_batch, training_),
                    number(step) > 0, "backward", "a gradient of its input");
        break;
      case Action::backward_input:
        if constexpr (SplitBackward<Stage, Training>) {
          auto [gradient, work] =
              stage.backward_input(take(at.kept), std::exchange(at.gradient, {}), step.micro_batch, training_);
          at.input_gradient =
              checked(std::move(gradient), number(step) > 0, "backward_input", "a gradient of its input");
          at.work.emplace(std::move(work));
        }
        break;
      case Action::backward_weight:
        if constexpr (SplitBackward<Stage, Training>) stage.backward_weight(take(at.work), step.micro_batch, training_);
        break;
    }
    if (trains) intervals_.push_back({step, begin, now()});
  }
  [[nodiscard]] int number(const Step& step) const noexcept { return step.chunk * schedule_.shape().ranks + rank(); }
  template <class X>
  static X take(std::optional<X>& from) {
    X value = std::move(*from);
    from.reset();
    return value;
  }
  [[nodiscard]] std::optional<Edge> checked(std::optional<Edge> tensor, bool wanted, std::string_view function,
                                            std::string_view what) const {
    if (tensor.has_value() == wanted &&
        (!wanted || (tensor->mesh() == spec_.mesh() && tensor->extents() == spec_.extents())))
      return tensor;
    throw InvalidState(std::string(function) + " of a pipeline's stage must return " + std::string(what) +
                           (wanted ? " of the mesh and extents of edge_spec()" : " only if there is a stage for it"),
                       context(function, location_));
  }

  /// One tag for the inputs of a stage and another one for its gradients; each has the order of the schedule.
  [[nodiscard]] int tag(int stage, bool gradient) const noexcept {
    return 2 * (stage / schedule_.shape().ranks) + (gradient ? 1 : 0);
  }
  void send(const Step& step, std::optional<Edge> tensor) {
    const bool gradient = step.action == Action::send_gradient;
    const int to = number(step) + (gradient ? -1 : 1), peer = schedule_.peer(rank(), step);
    if (peer == rank()) {
      auto& target = in_flight(to / schedule_.shape().ranks, step.micro_batch);
      (gradient ? target.gradient : target.input) = std::move(tensor);
      return;
    }
    while (!sent_.empty() && sent_.front().pending->test()) {
      sent_.front().pending->wait();
      sent_.pop_front();
    }
    auto& one = sent_.emplace_back(std::move(*tensor));
    try {
      one.pending.emplace(start_send(along_, std::as_const(one.tensor).local(), peer, tag(to, gradient),
                                     one.tensor.stream(), location_));
    } catch (...) {
      sent_.pop_back();
      throw;
    }
  }
  void receive(const Step& step, std::optional<Edge>& into) {
    const int peer = schedule_.peer(rank(), step);
    if (peer == rank()) return;  // the send has moved it here
    into.emplace(spec_, uninitialized);
    distx::receive(along_, into->local(), peer, tag(number(step), step.action == Action::receive_gradient), location_);
  }

  AnyCommunicator<Space> along_;
  Schedule schedule_;
  std::span<const Stage> stages_;
  Training& training_;
  typename Edge::spec_type spec_;
  here location_{};
  std::vector<InFlight> in_flight_;
  std::list<Sent> sent_;
  std::vector<Interval> intervals_;  // of the last `run`
  Clock::time_point begin_;
};

}  // namespace distx::inline DISTX_ABI::pipeline
