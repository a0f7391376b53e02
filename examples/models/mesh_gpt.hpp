// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <distx/parallel/layers/embedding.hpp>
#include <distx/parallel/layers/transformer_block.hpp>
#include <distx/tensor/ops/cross_entropy.hpp>

#include "gpt.hpp"

namespace examples {

/// What gives a block's first weights.
template <class A, class B, class C, class D>
struct FirstWeights {
  A projections;
  B output;
  C wide;
  D narrow;
};
template <class A, class B, class C, class D>
FirstWeights(A, B, C, D) -> FirstWeights<A, B, C, D>;

/// The Gpt whose batches and weights are split over a mesh, with the same first weights; see
/// distx::layers::TensorParallel.
///
/// The training is a distx::MeshParallel along the mesh's data axis, or looks like one.
template <class Split>
class MeshGpt {
  using Mesh = typename Split::mesh;
  template <std::size_t Rank, class... Ps>
  using Tensor = typename Split::template tensor<float, Rank, Ps...>;
  using Batches = distx::Shard<0, typename Split::data>;
  using Vocabulary = distx::Shard<2, typename Split::model>;

 public:
  using Scalar = float;

  /// @throws std::invalid_argument for a shape that is none
  MeshGpt(const Mesh& mesh, const GptShape& shape, std::uint64_t seed)
      : MeshGpt(mesh, checked_shape(shape), InitialWeights(seed)) {}

  [[nodiscard]] const GptShape& shape() const { return shape_; }

  /// Calls f with each weight, in forward order: tensors of several types.
  template <class F>
  void for_each_parameter(F&& f) const {
    embedding_.for_each_parameter(f);
    for (const auto& block : blocks_) block.for_each_parameter(f);
    norm_.for_each_parameter(f);
  }

  /// Returns the logits of each next token: vocabulary × tokens.
  /// @param tokens this rank's sequences of `length`, one after another: the same number on every rank, and the same
  ///        sequences on ranks whose coordinates differ only on the model axis
  template <class Training>
  const Matrix<Scalar>& logits(std::span<const Token> tokens, std::size_t length, Training& training) {
    run(tokens, length, training);
    const auto whole = distx::redistribute<Batches>(*logits_);
    matrix_ = Eigen::Map<const Matrix<Scalar>>(whole.local().data(), static_cast<Eigen::Index>(whole.extent(2)),
                                               static_cast<Eigen::Index>(tokens.size()));
    return matrix_;
  }

  /// The mean loss of this rank's sequences.
  template <class Training>
  Scalar forward(std::span<const Token> tokens, std::span<const Token> targets, std::size_t length,
                 Training& training) {
    run(tokens, length, training);
    targets_.emplace(distx::from_local<Batches>(mesh_, ids_->extents(), targets));
    auto entropies = distx::ops::cross_entropy(*logits_, *targets_);
    const auto losses = entropies.losses.local();
    log_sums_.emplace(std::move(entropies.log_sums));
    ran_forward_ = true;
    return static_cast<Scalar>(std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size()));
  }

  /// Adds `share` times the gradients of the loss that forward() last gave.
  /// @throws std::logic_error unless forward() was called since the last backward() and logits()
  template <class Training>
  void backward(Training& training, Scalar share = 1) {
    if (!ran_forward_) throw std::logic_error("MeshGpt: backward() has no forward() to follow: call forward() first");
    ran_forward_ = false;
    const auto slopes =
        distx::full<Scalar, Batches>(mesh_, ids_->extents(), share / static_cast<Scalar>(log_sums_->local().size()));
    const auto of_logits = distx::ops::cross_entropy_backward(*logits_, *targets_, *log_sums_, slopes);
    auto gradient = norm_.backward(embedding_.logits_backward(*normal_, of_logits, training), training);
    for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block)
      gradient = block->backward(gradient, training);
    embedding_.backward(*ids_, gradient, training);
  }

 private:
  using Stream = Tensor<3, typename Split::residual>;
  using Values = std::shared_ptr<const std::vector<float>>;

  /// Numbers as the Gpt has them in a matrix of outputs × inputs, by the places that they have here.
  static auto transposed(const Values& values, std::size_t inputs) {
    return [=](const distx::Extents<2>& index) { return (*values)[index[1] * inputs + index[0]]; };
  }
  static auto alike(const Values& values, std::size_t columns) {
    return [=](const distx::Extents<2>& index) { return (*values)[index[0] * columns + index[1]]; };
  }
  static auto projections(const Values& values, std::size_t width, std::size_t size) {
    return [=](const distx::Extents<4>& index) {
      return (*values)[(index[1] * width + index[2] * size + index[3]) * width + index[0]];
    };
  }
  static auto outputs(const Values& values, std::size_t width, std::size_t size) {
    return [=](const distx::Extents<3>& index) { return (*values)[index[2] * width + index[0] * size + index[1]]; };
  }

  MeshGpt(const Mesh& mesh, const GptShape& shape, InitialWeights initial)
      : mesh_(mesh), shape_(shape), embedding_(embedding(mesh, shape, initial)), norm_("norm", mesh, shape.width) {
    const std::size_t width = shape.width, size = width / shape.heads;
    const auto deviation = [](std::size_t inputs) { return 0.5 / std::sqrt(static_cast<double>(inputs)); };
    const double residual = std::sqrt(2.0 * static_cast<double>(shape.layers));
    blocks_.reserve(shape.layers);
    for (std::size_t i = 0; i < shape.layers; ++i) {
      const auto values = [&](std::size_t count, double of) { return numbers(initial, count, of); };
      const auto in = values(3 * width * width, deviation(width));
      const auto out = values(width * width, deviation(width) / residual);
      const auto wide = values(4 * width * width, deviation(width));
      const auto narrow = values(4 * width * width, deviation(4 * width) / residual);
      blocks_.emplace_back("block" + std::to_string(i), mesh, width, shape.heads,
                           FirstWeights{projections(in, width, size), outputs(out, width, size),
                                        transposed(wide, width), transposed(narrow, 4 * width)});
    }
  }
  static Values numbers(InitialWeights& initial, std::size_t count, double deviation) {
    return std::make_shared<const std::vector<float>>(initial.numbers<float>(count, deviation));
  }
  static distx::layers::ParallelEmbedding<float, Split> embedding(const Mesh& mesh, const GptShape& shape,
                                                                  InitialWeights& initial) {
    constexpr double deviation = 0.02;
    const auto tokens = numbers(initial, shape.vocabulary * shape.width, deviation);
    const auto places = numbers(initial, shape.context * shape.width, deviation);
    return {"embedding",
            mesh,
            shape.vocabulary,
            shape.context,
            shape.width,
            alike(tokens, shape.width),
            alike(places, shape.width)};
  }

  template <class Training>
  void run(std::span<const Token> tokens, std::size_t length, Training& training) {
    check_tokens(shape_, tokens, length);
    ran_forward_ = false;
    const auto places = static_cast<std::size_t>(mesh_.template size<typename Split::data>());
    const distx::Extents<2> extents{tokens.size() / length * places, length};
    ids_.emplace(distx::from_local<Batches>(mesh_, extents, tokens));
    Stream stream = embedding_.forward(*ids_, training);
    for (auto& block : blocks_) stream = block.forward(stream, training);
    normal_.emplace(distx::redistribute<typename Split::tokens>(norm_.forward(stream, training)));
    logits_.emplace(embedding_.logits(*normal_, training));
  }

  Mesh mesh_;
  GptShape shape_;
  distx::layers::ParallelEmbedding<float, Split> embedding_;
  std::vector<distx::layers::TransformerBlock<float, Split>> blocks_;
  distx::layers::ParallelLayerNorm<float, Split> norm_;
  std::optional<distx::DistTensor<Token, 2, Mesh, distx::Layout<Batches>>> ids_, targets_;
  std::optional<Tensor<3, typename Split::tokens>> normal_;
  std::optional<Tensor<3, Batches, Vocabulary>> logits_;
  std::optional<distx::DistTensor<double, 2, Mesh, distx::Layout<Batches>>> log_sums_;
  Matrix<Scalar> matrix_;
  bool ran_forward_ = false;
};

}  // namespace examples
