// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <distx/parallel/layers/embedding.hpp>
#include <distx/parallel/layers/recomputed.hpp>
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
///
/// @tparam Weight  float, or distx::bfloat16, which is computed in float
/// @tparam Recompute  whether blocks keep only their inputs for the backward pass
template <class Weight, class Split, bool Recompute = false>
class MeshGpt {
  using Mesh = typename Split::mesh;
  template <std::size_t Rank, class... Ps>
  using Tensor = typename Split::template tensor<Weight, Rank, Ps...>;
  using Batches = distx::Shard<0, typename Split::data>;
  using Vocabulary = distx::Shard<2, typename Split::model>;
  using Stream = Tensor<3, typename Split::residual>;
  using Space = typename Split::space;
  using Tokens = distx::DistTensor<Token, 2, Mesh, distx::Layout<Batches>, Space>;
  using TransformerBlock = distx::layers::TransformerBlock<Weight, Split>;
  using Block = std::conditional_t<Recompute, distx::layers::Recomputed<TransformerBlock>, TransformerBlock>;
  using OfBlock =
      std::conditional_t<Recompute, distx::layers::Activations<Stream>, typename TransformerBlock::activations>;
  /// The stream after the blocks, the same normalized, and the logits.
  using OfHead = distx::layers::Activations<Stream, Tensor<3, typename Split::tokens>, Tensor<3, Batches, Vocabulary>>;

 public:
  using Scalar = float;
  /// The arguments and results of a forward pass that its backward pass needs.
  struct Activations {
    Tokens ids, targets;
    std::vector<OfBlock> blocks;
    OfHead head;
    distx::DistTensor<double, 2, Mesh, distx::Layout<Batches>, Space> log_sums;
  };

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
    const auto head = run(tokens, length, training).head;
    const auto whole = distx::to_space<distx::Host>(distx::redistribute<Batches>(std::get<2>(head.kept())));
    matrix_ = Eigen::Map<const Matrix<Scalar>>(whole.local().data(), static_cast<Eigen::Index>(whole.extent(2)),
                                               static_cast<Eigen::Index>(tokens.size()));
    return matrix_;
  }

  /// Computes the mean loss of this rank's sequences.
  template <class Training>
  distx::layers::Forward<Scalar, Activations> forward(std::span<const Token> tokens, std::span<const Token> targets,
                                                      std::size_t length, Training& training) const {
    auto expected = of_tokens(targets, length);  // before the pass, for which its copy to a GPU would wait
    auto [ids, blocks, head] = run(tokens, length, training);
    auto entropies = distx::ops::cross_entropy(std::get<2>(head.kept()), expected);
    const auto here = distx::to_space<distx::Host>(entropies.losses);
    const auto losses = here.local();
    const double sum = std::accumulate(losses.begin(), losses.end(), 0.0);
    const auto mean = static_cast<Scalar>(sum / static_cast<double>(losses.size()));
    return {mean,
            {std::move(ids), std::move(expected), std::move(blocks), std::move(head), std::move(entropies.log_sums)}};
  }

  /// Adds `share` times the gradients of the loss of that forward pass.
  template <class Training>
  void backward(Activations kept, Training& training, Scalar share = 1) const {
    auto gradient = [&] {
      const OfHead head = std::move(kept.head);
      const auto& [stream, normal, logits] = head.kept();
      const auto slopes = distx::full<Scalar, Space, Batches>(
          mesh_, kept.ids.extents(), share / static_cast<Scalar>(kept.log_sums.local().size()));
      const auto of_logits = distx::ops::cross_entropy_backward(logits, kept.targets, kept.log_sums, slopes);
      return norm_.backward(stream, embedding_.logits_backward(normal, of_logits, training), training);
    }();
    for (std::size_t i = blocks_.size(); i-- > 0;)
      gradient = blocks_[i].backward(std::move(kept.blocks[i]), gradient, training);
    embedding_.backward(kept.ids, gradient, training);
  }

 private:
  struct Pass {
    Tokens ids;
    std::vector<OfBlock> blocks;
    OfHead head;
  };
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
  static distx::layers::ParallelEmbedding<Weight, Split> embedding(const Mesh& mesh, const GptShape& shape,
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

  /// A tensor of this rank's sequences.
  Tokens of_tokens(std::span<const Token> tokens, std::size_t length) const {
    check_tokens(shape_, tokens, length);
    const auto places = static_cast<std::size_t>(mesh_.template size<typename Split::data>());
    return distx::to_space<Space>(
        distx::from_local<Batches>(mesh_, distx::Extents<2>{tokens.size() / length * places, length}, tokens));
  }

  template <class Training>
  Pass run(std::span<const Token> tokens, std::size_t length, Training& training) const {
    auto ids = of_tokens(tokens, length);
    Stream stream = embedding_.forward(ids, training);
    std::vector<OfBlock> of_blocks;
    of_blocks.reserve(blocks_.size());
    for (const auto& block : blocks_) {
      auto [output, kept] = block.forward(std::move(stream), training);
      stream = std::move(output);
      of_blocks.push_back(std::move(kept));
    }
    auto normal = distx::redistribute<typename Split::tokens>(norm_.forward(stream, training));
    auto logits = embedding_.logits(normal, training);
    return {std::move(ids), std::move(of_blocks),
            OfHead(training, std::move(stream), std::move(normal), std::move(logits))};
  }

  Mesh mesh_;
  GptShape shape_;
  distx::layers::ParallelEmbedding<Weight, Split> embedding_;
  std::vector<Block> blocks_;
  distx::layers::ParallelLayerNorm<Weight, Split> norm_;
  Matrix<Scalar> matrix_;
};

}  // namespace examples
