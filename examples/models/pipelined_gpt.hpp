// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include <distx/comm/groups.hpp>
#include <distx/parallel/pipeline/deferred_weights.hpp>
#include <distx/parallel/pipeline/pipeline.hpp>
#include <distx/parallel/pipeline/tied_weight.hpp>

#include "../data/text.hpp"
#include "mesh_gpt.hpp"

namespace examples {

/// The micro-batches of a step, and the losses of their sequences, which the last stage computes.
struct PipelineStep {
  std::span<const TextBatch> batches;
  float share = 1;  ///< the gradients are those of `share` times each loss
  std::vector<std::vector<double>> losses{};
  bool keeps_logits = false;
  Matrix<float> logits{};  ///< of the last micro-batch, which the last stage computes if they are kept
};

/// A part of a MeshGpt as a stage of a distx::pipeline::Pipeline.
template <class Weight, class Split, bool Recompute, class Training>
class GptStage {
 public:
  using Model = MeshGpt<Weight, Split, Recompute>;
  using edge = typename Model::Edge;
  using activations = typename Model::Activations;
  using weight_work = distx::pipeline::WeightWork<Training>;

  /// @param step  outlives the stage
  GptStage(Model model, PipelineStep& step) : model_(std::move(model)), step_(&step) {}
  /// Adds the gradients of a tied table on the ranks of `holders`; afterwards the stage stays where it is.
  void tie(const distx::AnyCommunicator<>& holders) {
    if (model_.tied() != nullptr) tied_.emplace(*model_.tied(), holders);
  }

  [[nodiscard]] const Model& model() const { return model_; }
  /// Whether a weight is the tied table's copy on a stage other than the first.
  template <class ParameterT>
  [[nodiscard]] bool is_copy(const ParameterT& parameter) const {
    return &parameter == static_cast<const void*>(model_.tied()) && !model_.part().first();
  }
  [[nodiscard]] typename edge::spec_type edge_spec() const {
    const auto& batch = step_->batches.front();
    return model_.edge_spec(batch.tokens.size() / batch.length, batch.length);
  }
  [[nodiscard]] distx::layers::Forward<std::optional<edge>, activations> forward(std::optional<edge> input,
                                                                                 int micro_batch,
                                                                                 Training& training) const {
    const auto at = static_cast<std::size_t>(micro_batch);
    const auto& batch = step_->batches[at];
    auto passed = model_.forward_part(std::move(input), batch.tokens, batch.targets, batch.length, training);
    if (!passed.output) {
      step_->losses[at] = std::move(passed.losses);
      if (step_->keeps_logits) step_->logits = model_.logits(passed.activations);
    }
    return {std::move(passed.output), std::move(passed.activations)};
  }
  [[nodiscard]] std::optional<edge> backward(activations kept, std::optional<edge> gradient, int,
                                             Training& training) const {
    return with_table(training, training, [&](auto& of_table) {
      return model_.backward_part(std::move(kept), std::move(gradient), training, of_table, step_->share);
    });
  }
  [[nodiscard]] std::pair<std::optional<edge>, weight_work> backward_input(activations kept,
                                                                           std::optional<edge> gradient, int,
                                                                           Training& training) const {
    distx::pipeline::DeferredWeights later(training);
    auto of_input = with_table(training, later, [&](auto& of_table) {
      return model_.backward_part(std::move(kept), std::move(gradient), later, of_table, step_->share);
    });
    return {std::move(of_input), later.take()};
  }
  void backward_weight(weight_work work, int, Training& training) const {
    distx::pipeline::compute(std::move(work), training);
  }
  /// Declares a tied table's gradient ready. Collective over the ranks that have it.
  void finish(Training& training) const {
    if (tied_) tied_->ready(training);
  }

 private:
  using Tied = distx::pipeline::TiedWeight<typename Split::data, typename Model::Table>;

  /// Calls f(training for the gradients of the table of tokens).
  template <class Untied, class F>
  auto with_table(Training& training, Untied& untied, F&& f) const {
    if (!tied_) return f(untied);
    distx::pipeline::TiedTraining tied(training, *tied_);
    return f(tied);
  }

  Model model_;
  PipelineStep* step_;
  mutable std::optional<Tied> tied_{};
};

/// A MeshGpt in stages, of which this rank has some.
template <class Weight, class Split, bool Recompute, class Training>
class PipelinedGpt {
  using Stage = GptStage<Weight, Split, Recompute, Training>;
  using Schedule = std::variant<distx::pipeline::Schedule, distx::pipeline::SplitSchedule>;

 public:
  using Scalar = float;

  /// Collective over `along`.
  /// @param along  the ranks that hold the stages
  PipelinedGpt(distx::AnyCommunicator<>& along, const typename Split::mesh& mesh, const GptShape& shape,
               std::uint64_t seed, const Schedule& schedule, bool untied)
      : along_(along.share()), schedule_(schedule), shape_(shape) {
    const int chunks = plain().shape().chunks, count = chunks * along_.size();
    stages_.reserve(static_cast<std::size_t>(chunks));
    for (int chunk = 0; chunk < chunks; ++chunk)
      stages_.emplace_back(
          typename Stage::Model(mesh, shape, seed, {chunk * along_.size() + along_.rank(), count, untied}), step_);
    std::vector<int> ends{0};
    if (along_.size() > 1) ends.push_back(along_.size() - 1);
    const auto holders = distx::groups(along_, {ends});
    for (auto& stage : stages_) stage.tie(holders);
  }
  PipelinedGpt(const PipelinedGpt&) = delete;
  PipelinedGpt& operator=(const PipelinedGpt&) = delete;

  [[nodiscard]] const GptShape& shape() const { return shape_; }
  [[nodiscard]] const distx::pipeline::Schedule& plain() const {
    return std::visit([](const auto& each) -> const auto& { return distx::pipeline::plain(each); }, schedule_);
  }
  [[nodiscard]] const std::vector<Stage>& stages() const { return stages_; }
  [[nodiscard]] distx::AnyCommunicator<>& along() { return along_; }

  /// Lists the weights of this rank's stages.
  void list(distx::TensorParameterList<>& parameters) const {
    for (const auto& stage : stages_)
      stage.model().for_each_parameter([&](const auto& parameter) {
        if (&parameter == static_cast<const void*>(stage.model().tied()))
          parameters.add(parameter, distx::pipeline::StageUse{.counted = !stage.is_copy(parameter)});
        else
          parameters.add(parameter, distx::pipeline::StageUse{.micro_batches = plain().shape().micro_batches});
      });
  }
  /// Makes the forward and backward passes of a step and returns this rank's mean loss. Collective over all stages.
  double train(std::span<const TextBatch> batches, Training& training) {
    begin(batches);
    std::visit(
        [&](const auto& schedule) {
          if (!pipeline_) pipeline_.emplace(along_, schedule, std::span<const Stage>(stages_), training);
        },
        schedule_);
    pipeline_->run();
    for (const auto& stage : stages_) stage.finish(training);
    double sum = 0, count = 0;
    for (const auto& each : step_.losses)
      for (const double loss : each) sum += loss, ++count;
    return at_all(sum / std::max(1.0, count));
  }
  /// Returns the logits of each next token, as MeshGpt does. Collective over all stages.
  const Matrix<Scalar>& logits(std::span<const Token> tokens, std::size_t length, Training& training) {
    const std::vector<Token> own(tokens.begin(), tokens.end());
    step_.keeps_logits = true;
    static_cast<void>(evaluate({length, own, own}, 0, training));  // losses of any targets, which nothing uses
    step_.keeps_logits = false;
    auto& logits = step_.logits;
    logits.resize(static_cast<Eigen::Index>(shape_.vocabulary), static_cast<Eigen::Index>(tokens.size()));
    distx::broadcast(along_, distx::Span<Scalar>(logits.data(), static_cast<std::size_t>(logits.size())),
                     along_.size() - 1);
    return logits;
  }
  /// Returns the sum of the losses of the first `counted` sequences of a batch. Collective over all stages.
  double evaluate(const TextBatch& batch, std::size_t counted, Training& training) {
    begin({&batch, 1});
    distx::pipeline::Pipeline pass(along_, distx::pipeline::gpipe(along_.size(), 1, plain().shape().chunks),
                                   std::span<const Stage>(stages_), training);
    pass.run_forward();
    double sum = 0;
    if (const auto& losses = step_.losses.front(); !losses.empty())
      for (const double loss : std::span(losses).first(counted)) sum += loss;
    return at_all(sum);
  }

 private:
  void begin(std::span<const TextBatch> batches) {
    step_.batches = batches;
    step_.share = 1.0F / static_cast<float>(batches.size());
    step_.losses.assign(batches.size(), {});
  }
  /// Returns the last rank's value.
  double at_all(double value) {
    distx::broadcast(along_, value, along_.size() - 1);
    return value;
  }

  distx::AnyCommunicator<> along_;
  Schedule schedule_;
  GptShape shape_;
  PipelineStep step_;
  std::vector<Stage> stages_;
  std::optional<distx::pipeline::Pipeline<Stage, Training>> pipeline_{};
};

}  // namespace examples
