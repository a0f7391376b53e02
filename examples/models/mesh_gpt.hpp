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
#include <type_traits>
#include <vector>

#include <distx/parallel/layers/embedding.hpp>
#include <distx/parallel/layers/experts/routing.hpp>
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

/// The experts of each block of a MeshGpt.
struct GptExperts {
  std::size_t count = 0;
  std::shared_ptr<distx::layers::RouterSettings> settings{};
};

/// Returns the number of weights of a MeshGpt without experts in all of its parts.
[[nodiscard]] inline std::size_t weights_of(const GptShape& shape, bool untied) {
  const std::size_t w = shape.width, tables = shape.vocabulary * (untied ? 2 : 1) + shape.context;
  return tables * w + shape.layers * (12 * w * w + 13 * w) + 2 * w;
}

/// Which of equally many consecutive blocks of a Gpt a stage of a pipeline has.
struct GptPart {
  int index = 0;
  int count = 1;
  bool untied = false;  ///< whether the output layer has another table, at first with the embedding's values

  [[nodiscard]] bool first() const { return index == 0; }
  [[nodiscard]] bool last() const { return index + 1 == count; }
};

/// The Gpt whose batches and weights are split over a mesh, with the same first weights; see
/// distx::layers::TensorParallel. Or a part of it: the first one has the embedding, the last one the output layer.
///
/// The training is a distx::MeshParallel along the mesh's data axis, or looks like one.
///
/// @tparam Weight  float, or distx::bfloat16, which is computed in float
/// @tparam Recompute  whether blocks keep only their inputs for the backward pass
/// @tparam Mlp  the second branch of each block, such as a distx::layers::ParallelExperts
template <class Weight, class Split, bool Recompute = false, class Mlp = distx::layers::ParallelMlp<Weight, Split>>
class MeshGpt {
  using Mesh = typename Split::mesh;
  template <std::size_t Rank, class... Ps>
  using Tensor = typename Split::template tensor<Weight, Rank, Ps...>;
  static constexpr bool has_experts = !std::same_as<Mlp, distx::layers::ParallelMlp<Weight, Split>>;
  using Vocabulary = distx::Shard<2, typename Split::model>;
  using Own = typename Split::tokens;
  using Stream = Tensor<3, typename Split::residual>;
  using Space = typename Split::space;
  using TransformerBlock = distx::layers::TransformerBlock<Weight, Split, Mlp>;
  using Block = std::conditional_t<Recompute, distx::layers::Recomputed<TransformerBlock>, TransformerBlock>;
  using OfBlock =
      std::conditional_t<Recompute, distx::layers::Activations<Stream>, typename TransformerBlock::activations>;
  /// The stream after the blocks, the same normalized, and the logits.
  using OfHead = distx::layers::Activations<Stream, Tensor<3, Own>, Tensor<3, Own, Vocabulary>>;
  using Output = distx::layers::ParallelOutput<Weight, Split>;

 public:
  /// Whether the rows of weights are their inputs, as those of GPT-2 in a Hugging Face folder.
  static constexpr bool inputs_first = true;

  using Scalar = float;
  using Edge = Stream;  ///< between parts
  /// The ids of this rank's tokens, or their targets, (sequences, length).
  using Tokens = distx::DistTensor<Token, 2, Mesh, Own, Space>;
  using HostTokens = distx::DistTensor<Token, 2, Mesh, Own>;
  /// The losses of this rank's tokens, (sequences, length).
  using Losses = distx::DistTensor<Scalar, 2, Mesh, Own, Space>;
  using Table = typename Output::weight;

  /// The arguments of the last part's backward pass besides those of its blocks.
  struct Head {
    OfHead layers;
    Tokens targets;
    distx::DistTensor<double, 2, Mesh, Own, Space> log_sums;
  };
  /// The arguments and results of a forward pass that its backward pass needs.
  struct Activations {
    Tokens ids;
    std::vector<OfBlock> blocks;
    std::optional<Head> head{};  // of the last part
  };
  /// The results of a part's forward pass: the stream for the next part, or the mean loss of each sequence.
  struct Passed {
    std::optional<Edge> output{};
    std::vector<double> losses{};
    Activations activations;
  };

  /// @throws std::invalid_argument for a shape that is none
  MeshGpt(const Mesh& mesh, const GptShape& shape, std::uint64_t seed, const GptPart& part = {},
          GptExperts experts = {})
      : MeshGpt(mesh, checked_shape(shape), InitialWeights(seed), part, std::move(experts)) {}

  [[nodiscard]] const GptShape& shape() const { return shape_; }
  [[nodiscard]] const GptPart& part() const { return part_; }
  [[nodiscard]] const Mesh& mesh() const { return mesh_; }

  /// Calls f with each weight, in forward order: tensors of several types.
  template <class F>
  void for_each_parameter(F&& f) const {
    if (embedding_) embedding_->for_each_parameter(f);
    for (const auto& block : blocks_) block.for_each_parameter(f);
    if (norm_) norm_->for_each_parameter(f);
    if (output_) output_->for_each_parameter(f);
  }
  /// Returns the table that the first and the last part have a copy of, or null where this part has none.
  [[nodiscard]] const Table* tied() const {
    if (part_.untied || part_.count == 1) return nullptr;
    return part_.first() ? &embedding_->tokens() : part_.last() ? &output_->tokens() : nullptr;
  }
  /// Returns the extents of the stream between parts.
  [[nodiscard]] typename Edge::spec_type edge_spec(std::size_t sequences, std::size_t length) const {
    return {mesh_, {sequences * places(), length, shape_.width}};
  }

  /// Returns the logits of each next token: vocabulary × tokens.
  /// @param tokens this rank's sequences of `length`, one after another: the same number on every rank, and the same
  ///        sequences on ranks whose coordinates differ only on the model axis
  template <class Training>
  const Matrix<Scalar>& logits(std::span<const Token> tokens, std::size_t length, Training& training) {
    auto stream = run(std::nullopt, of_tokens(tokens, length), training).stream;
    matrix_ = logits_of(run_head(std::move(stream), training));
    return matrix_;
  }
  /// Returns the logits of a forward pass of the last part. Collective over the mesh.
  [[nodiscard]] Matrix<Scalar> logits(const Activations& kept) const { return logits_of(kept.head->layers); }

  /// Computes the mean loss of this rank's sequences.
  template <class Training>
  distx::layers::Forward<Scalar, Activations> forward(std::span<const Token> tokens, std::span<const Token> targets,
                                                      std::size_t length, Training& training) const {
    auto passed = forward_part(std::nullopt, tokens, targets, length, training);
    return {mean_of(passed.losses), std::move(passed.activations)};
  }
  /// Computes the loss of each token. With a mesh on GPUs it is enqueued, and the host waits for nothing: a step of
  /// this and `backward` can be captured.
  /// @pre the model has all parts
  template <class Training>
  auto losses(Tokens ids, Tokens targets, Training& training) const {
    return head_forward(run(std::nullopt, std::move(ids), training), std::move(targets), training);
  }
  /// Returns the mean of the losses of all tokens, as `forward` does. Blocks the host until they are computed.
  [[nodiscard]] Scalar mean(const Losses& losses) const { return mean_of(of_sequences(losses)); }
  /// Returns a tensor of this rank's sequences. Blocks the host until they are copied.
  [[nodiscard]] Tokens of_tokens(std::span<const Token> tokens, std::size_t length) const {
    return distx::to_space<Space>(host_tokens(tokens, length));
  }
  /// Returns the same in the host's memory.
  [[nodiscard]] HostTokens host_tokens(std::span<const Token> tokens, std::size_t length) const {
    check_tokens(shape_, tokens, length);
    const distx::Extents<2> extents{tokens.size() / length * places(), length};
    HostTokens own({mesh_, extents}, distx::uninitialized);
    const auto to = own.view();
    const auto order = Split::order(mesh_, length);
    for (std::size_t b = 0; b < to.extent(0); ++b)
      for (std::size_t t = 0; t < to.extent(1); ++t)
        to(b, t) = tokens[b * length + order.position(own.offset()[1] + t)];
    return own;
  }
  /// Adds `share` times the gradients of the loss of that forward pass.
  template <class Training>
  void backward(Activations kept, Training& training, Scalar share = 1) const {
    static_cast<void>(backward_part(std::move(kept), std::nullopt, training, training, share));
  }

  /// Computes this part's forward pass.
  /// @param input  the output of the part before; none at the first one
  template <class Training>
  Passed forward_part(std::optional<Edge> input, std::span<const Token> tokens, std::span<const Token> targets,
                      std::size_t length, Training& training) const {
    std::optional<Tokens> expected;
    if (part_.last()) expected.emplace(of_tokens(targets, length));  // first: the pass would delay its copy to a GPU
    auto pass = run(std::move(input), of_tokens(tokens, length), training);
    if (!part_.last()) return {std::move(pass.stream), {}, {std::move(pass.ids), std::move(pass.blocks)}};
    auto [losses, kept] = head_forward(std::move(pass), *std::move(expected), training);
    return {std::nullopt, of_sequences(losses), std::move(kept)};
  }
  /// Computes the gradient of this part's input, and of `share` times the loss those of its weights.
  /// @param gradient  of the output; none at the last part
  /// @param of_table  the training for the gradients of the table of tokens
  /// @return none at the first part
  template <class Training, class TableTraining>
  std::optional<Edge> backward_part(Activations kept, std::optional<Edge> gradient, Training& training,
                                    TableTraining& of_table, Scalar share) const {
    if constexpr (has_experts) experts_.settings->loss_share = share;
    if (part_.last()) gradient.emplace(head_backward(*std::exchange(kept.head, {}), training, of_table, share));
    for (std::size_t i = blocks_.size(); i-- > 0;)
      gradient.emplace(blocks_[i].backward(std::move(kept.blocks[i]), *gradient, training));
    if (!part_.first()) return gradient;
    embedding_->backward(kept.ids, *gradient, of_table);
    return std::nullopt;
  }

 private:
  struct Pass {
    Tokens ids;
    Stream stream;
    std::vector<OfBlock> blocks;
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
  static auto of_expert(const Values& values, std::size_t rows, std::size_t columns) {
    return [=](const distx::Extents<3>& index) { return (*values)[(index[0] * rows + index[1]) * columns + index[2]]; };
  }
  static auto outputs(const Values& values, std::size_t width, std::size_t size) {
    return [=](const distx::Extents<3>& index) { return (*values)[index[2] * width + index[0] * size + index[1]]; };
  }

  MeshGpt(const Mesh& mesh, const GptShape& shape, InitialWeights initial, const GptPart& part, GptExperts experts)
      : mesh_(mesh), shape_(shape), part_(part), experts_(std::move(experts)) {
    // Every part draws the numbers of all, and keeps its own.
    const std::size_t width = shape.width, size = width / shape.heads;
    const auto deviation = [](std::size_t inputs) { return 0.5 / std::sqrt(static_cast<double>(inputs)); };
    const double residual = std::sqrt(2.0 * static_cast<double>(shape.layers));
    constexpr double of_embedding = 0.02;
    const auto tokens = numbers(initial, shape.vocabulary * width, of_embedding);
    const auto positions = numbers(initial, shape.context * width, of_embedding);
    if (part.first())
      embedding_.emplace("embedding", mesh, shape.vocabulary, shape.context, width, alike(tokens, width),
                         alike(positions, width), part.count == 1 && !part.untied ? 2 : 1);
    const auto bound = [&](int index) {
      return shape.layers * static_cast<std::size_t>(index) / static_cast<std::size_t>(part.count);
    };
    blocks_.reserve(shape.layers);
    for (std::size_t i = 0; i < shape.layers; ++i) {
      const auto values = [&](std::size_t count, double of) { return numbers(initial, count, of); };
      const auto in = values(3 * width * width, deviation(width));
      const auto out = values(width * width, deviation(width) / residual);
      const std::size_t mlps = std::max<std::size_t>(1, experts_.count);
      const auto wide = values(mlps * 4 * width * width, deviation(width));
      const auto narrow = values(mlps * 4 * width * width, deviation(4 * width) / residual);
      const auto gate = has_experts ? values(width * experts_.count, of_embedding) : nullptr;
      if (i < bound(part.index) || i >= bound(part.index + 1)) continue;
      const std::string name = "block" + std::to_string(i);
      const FirstWeights first{projections(in, width, size), outputs(out, width, size), transposed(wide, width),
                               transposed(narrow, 4 * width)};
      if constexpr (has_experts)
        blocks_.emplace_back(
            name, mesh, width, shape.heads, first,
            Mlp(name + ".experts", mesh, width, 4 * width, experts_.count, alike(gate, experts_.count),
                of_expert(wide, width, 4 * width), of_expert(narrow, 4 * width, width), experts_.settings),
            shape.epsilon);
      else
        blocks_.emplace_back(name, mesh, width, shape.heads, first, shape.epsilon);
    }
    if (!part.last()) return;
    norm_.emplace("norm", mesh, width, shape.epsilon);
    if (part.untied || part.count > 1)
      output_.emplace(part.untied ? "output.tokens" : "embedding.tokens", mesh, shape.vocabulary, width,
                      alike(tokens, width));
  }
  static Values numbers(InitialWeights& initial, std::size_t count, double deviation) {
    return std::make_shared<const std::vector<float>>(initial.numbers<float>(count, deviation));
  }

  /// The number of ranks that batches are sharded over.
  [[nodiscard]] std::size_t places() const {
    std::size_t ranks = averaged_places();
    if constexpr (has_experts) ranks *= static_cast<std::size_t>(mesh_.template size<typename Split::experts>());
    return ranks;
  }
  /// The number of those of whose gradients the training takes the mean, while it adds the others'.
  [[nodiscard]] std::size_t averaged_places() const {
    return static_cast<std::size_t>(mesh_.template size<typename Split::data>());
  }
  /// Returns the mean of each sequence's losses. Collective over the axis that shards sequences, if there is one.
  template <class Losses>
  std::vector<double> of_sequences(const Losses& losses) const {
    const auto here = distx::to_space<distx::Host>(losses);
    const auto values = here.view();
    std::vector<double> sums(values.extent(0));
    for (std::size_t b = 0; b < values.extent(0); ++b)
      for (std::size_t t = 0; t < values.extent(1); ++t) sums[b] += static_cast<double>(values(b, t));
    if constexpr (!std::is_void_v<typename Split::context> && distx::HostAccessible<Space>)
      distx::all_reduce(mesh_.template along<typename Split::context>(), sums, distx::sum);
    for (double& sum : sums) sum /= static_cast<double>(losses.extent(1));
    return sums;
  }
  [[nodiscard]] static Scalar mean_of(const std::vector<double>& losses) {
    const double sum = std::accumulate(losses.begin(), losses.end(), 0.0);
    return static_cast<Scalar>(sum / static_cast<double>(losses.size()));
  }
  template <class Training>
  Pass run(std::optional<Stream> input, Tokens ids, Training& training) const {
    Stream stream = part_.first() ? Stream(embedding_->forward(ids, training)) : *std::exchange(input, {});
    std::vector<OfBlock> of_blocks;
    of_blocks.reserve(blocks_.size());
    for (const auto& block : blocks_) {
      auto [output, kept] = block.forward(std::move(stream), training);
      stream = std::move(output);
      of_blocks.push_back(std::move(kept));
    }
    return {std::move(ids), std::move(stream), std::move(of_blocks)};
  }
  [[nodiscard]] static Matrix<Scalar> logits_of(const OfHead& head) {
    const auto whole =
        distx::to_space<distx::Host>(distx::redistribute<typename Split::batches>(std::get<2>(head.kept())));
    const auto vocabulary = static_cast<Eigen::Index>(whole.extent(2));
    const Eigen::Map<const Matrix<Scalar>> logits(whole.local().data(), vocabulary,
                                                  static_cast<Eigen::Index>(whole.local().size()) / vocabulary);
    if constexpr (!Split::ring) return logits;
    Matrix<Scalar> ordered(logits.rows(), logits.cols());
    const std::size_t length = whole.extent(1);
    const auto order = Split::order(whole.mesh(), length);
    for (std::size_t i = 0; i < static_cast<std::size_t>(logits.cols()); ++i)
      ordered.col(static_cast<Eigen::Index>(i - i % length + order.position(i % length))) =
          logits.col(static_cast<Eigen::Index>(i));
    return ordered;
  }
  template <class Training>
  OfHead run_head(Stream stream, Training& training) const {
    auto normal = distx::redistribute<typename Split::tokens>(norm_->forward(stream, training));
    auto logits = output_ ? output_->logits(normal, training) : embedding_->logits(normal, training);
    return OfHead(training, std::move(stream), std::move(normal), std::move(logits));
  }
  /// Returns the losses of all tokens.
  template <class Training>
  auto head_forward(Pass pass, Tokens targets, Training& training) const {
    auto layers = run_head(std::move(pass.stream), training);
    auto entropies = distx::ops::cross_entropy(std::get<2>(layers.kept()), targets);
    return distx::layers::Forward{std::move(entropies.losses), Activations{std::move(pass.ids), std::move(pass.blocks),
                                                                           Head{std::move(layers), std::move(targets),
                                                                                std::move(entropies.log_sums)}}};
  }
  template <class Training, class TableTraining>
  Stream head_backward(Head head, Training& training, TableTraining& of_table, Scalar share) const {
    const auto& [stream, normal, logits] = head.layers.kept();
    const auto slopes = distx::full<Scalar, Space, Own>(
        mesh_, head.targets.extents(),
        share / static_cast<Scalar>(distx::volume(head.targets.extents()) / averaged_places()));
    const auto of_logits = distx::ops::cross_entropy_backward(logits, head.targets, head.log_sums, slopes);
    const auto of_normal = output_ ? output_->logits_backward(normal, of_logits, of_table)
                                   : embedding_->logits_backward(normal, of_logits, of_table);
    return norm_->backward(stream, of_normal, training);
  }

  Mesh mesh_;
  GptShape shape_;
  GptPart part_;
  GptExperts experts_;
  std::optional<distx::layers::ParallelEmbedding<Weight, Split>> embedding_{};
  std::vector<Block> blocks_;
  std::optional<distx::layers::ParallelLayerNorm<Weight, Split>> norm_{};
  std::optional<Output> output_{};
  Matrix<Scalar> matrix_;
};

/// Calls f(name, values) with each weight, in forward order, in the host's memory. Collective.
template <class Weight, class Split, bool Recompute, class Mlp, class Training, class F>
void for_each_whole_weight(const MeshGpt<Weight, Split, Recompute, Mlp>& model, Training& training, F&& f) {
  using Space = typename Training::space;
  const auto stream = model.mesh().template stream<Space>();
  training.for_each_full_weight([&](const std::string& name, const auto& values) {
    const distx::Span<const Weight, Space> whole(static_cast<const Weight*>(values.data()), values.size());
    if constexpr (distx::HostAccessible<Space>) return f(name, std::span<const Weight>(whole.data(), whole.size()));
    std::vector<Weight> here(values.size());
    copy(stream, distx::Span<Weight>(here), whole);  // the space's
    stream.synchronize();
    f(name, std::span<const Weight>(here));
  });
}

}  // namespace examples
