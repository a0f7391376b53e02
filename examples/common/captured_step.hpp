// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <distx/tensor.hpp>
#include <distx/training.hpp>

namespace examples {

/// A training whose steps can be captured, such as a MeshTraining in GPU memory.
template <class Training>
concept CapturingTraining = requires { requires Training::captures; };

/// One step of a MeshGpt in a CUDA graph, which reads tokens from, and writes losses to, arrays that stay where they
/// are.
template <class Model, CapturingTraining Training>
class CapturedStep {
 public:
  /// Captures a step of micro-batches like `parts`, and makes none. Collective over the mesh.
  /// @param model, training  outlive this
  template <class Batch>
  CapturedStep(const Model& model, Training& training, const std::vector<Batch>& parts)
      : model_(model), training_(training) {
    const auto& mesh = model.mesh();
    for (const auto& part : parts) {
      auto ids = model.of_tokens(part.tokens, part.length);
      Losses losses({mesh, ids.extents()}, distx::uninitialized);
      parts_.push_back({std::move(ids), model.of_tokens(part.targets, part.length), std::move(losses)});
    }
    training.capture([&] {
      for (std::size_t i = 0; i < parts_.size(); ++i) pass(i);
    });
  }

  /// Makes the step from other micro-batches of the same sizes and returns the mean loss of this rank. Blocks until the
  /// step is complete. Collective over the mesh.
  template <class Batch>
  double replay(const std::vector<Batch>& parts, double rate) {
    std::vector<typename Model::HostTokens> sources;  // which exist until they are copied
    sources.reserve(2 * parts.size());
    const auto copy_tokens = [&](Tokens& to, const auto& tokens, std::size_t length) {
      sources.push_back(model_.host_tokens(tokens, length));
      copy(stream(), to.local(), std::as_const(sources.back()).local());
    };
    training_.begin_step();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      copy_tokens(parts_[i].ids, parts[i].tokens, parts[i].length);
      copy_tokens(parts_[i].targets, parts[i].targets, parts[i].length);
    }
    return training_.replay({.learning_rate = rate}, [&] {
      double loss = 0;
      for (const auto& part : parts_) loss += share() * static_cast<double>(model_.mean(part.losses));
      return loss;
    });
  }

 private:
  using Tokens = typename Model::Tokens;
  using Losses = typename Model::Losses;
  struct Part {
    Tokens ids, targets;
    Losses losses;
  };

  [[nodiscard]] auto stream() const { return model_.mesh().template stream<typename Training::space>(); }
  [[nodiscard]] double share() const { return 1.0 / static_cast<double>(parts_.size()); }
  /// Enqueues one micro-batch. Its allocations belong to the graph.
  void pass(std::size_t index) {
    auto& part = parts_[index];
    const auto scope = training_.micro_batch({.index = index, .count = parts_.size()});
    auto [losses, kept] = model_.losses(part.ids.clone(), part.targets.clone(), training_);
    copy(stream(), part.losses.local(), std::as_const(losses).local());
    model_.backward(std::move(kept), training_, static_cast<typename Model::Scalar>(share()));
  }

  const Model& model_;
  Training& training_;
  std::vector<Part> parts_;
};

}  // namespace examples
