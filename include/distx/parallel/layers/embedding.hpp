// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/layers/tensor_parallel.hpp"
#include "distx/tensor/make_tensor.hpp"
#include "distx/tensor/ops/arithmetic.hpp"
#include "distx/tensor/ops/bias.hpp"
#include "distx/tensor/ops/embedding.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// x (batch, length, width) plus the row of a table (context, width) of each token's position in its sequence.
struct AddPositions {
  static constexpr std::string_view name = "add_positions";
  static constexpr rules::AxisPlacement on(rules::AxisPlacement x, rules::AxisPlacement table) {
    if (!table.is_replicated()) return rules::unsupported;
    if (x.is_replicated() || x.is_shard(0) || x.is_shard(1)) return x;
    return rules::unsupported;
  }
  static Extents<3> extents(const Extents<3>& x, const Extents<2>& table) {
    if (x[1] > table[0] || x[2] != table[1]) rules::extents_mismatch("the table must be (context, width)", x, table);
    return x;
  }
};
/// The gradient of that table, of which only the extents are used, from that of the result.
struct PositionsGradient {
  static constexpr std::string_view name = "positions_gradient";
  static constexpr rules::AxisPlacement on(rules::AxisPlacement table, rules::AxisPlacement gradient) {
    if (!table.is_replicated()) return rules::unsupported;
    if (gradient.is_replicated()) return rules::replicated;
    if (gradient.is_shard(0) || gradient.is_shard(1) || gradient.is_sum()) return rules::partial_sum;
    return rules::unsupported;
  }
  static Extents<2> extents(const Extents<2>& table, const Extents<3>& gradient) {
    (void)AddPositions::extents(gradient, table);
    return table;
  }
};

/// The values of `count` rows from `first` on.
template <class T, class Space>
Span<T, Space> rows_of(const TensorRef<T, 2, Space>& table, std::size_t first, std::size_t count) {
  return table.values().subspan(first * table.extent(1), count * table.extent(1));
}

}  // namespace detail

namespace layers {

/// The output layer of a transformer: a table (vocabulary, width), sharded over the model axis. Not tied to an
/// embedding, or a copy of an embedding's table.
/// @tparam T  the element type
/// @tparam Split  a TensorParallel
template <class T, class Split>
class ParallelOutput {
 public:
  using weight = typename Split::template weight<T, 2, Shard<0, typename Split::model>>;

  /// @param tokens  tokens(index) returns the first weight at an index of (vocabulary, width)
  template <class F>
  ParallelOutput(const std::string& name, const typename Split::mesh& mesh, std::size_t vocabulary, std::size_t width,
                 F tokens, const ParameterOptions& options = {})
      : tokens_(name, mesh, {vocabulary, width}, std::move(tokens), options) {}

  [[nodiscard]] const weight& tokens() const noexcept { return tokens_; }
  /// Calls f(parameter) for every TensorParameter.
  template <class F>
  void for_each_parameter(F&& f) const {
    f(tokens_);
  }

  /// Returns the logits (batch, length, vocabulary), sharded in the last dimension, of tokens (batch, length, width).
  /// Local.
  template <class X, class Training>
  [[nodiscard]] auto logits(const X& tokens, Training& training) const {
    const auto weights = training.unshard(tokens_);
    return ops::contract_input<1>(tokens, detail::operand(tokens_));
  }
  /// Returns the gradient of the tokens, in the residual layout. Collective over the model axis.
  template <class X, class G, class Training>
  [[nodiscard]] auto logits_backward(const X& tokens, const G& gradient, Training& training) const {
    const auto weights = training.unshard(tokens_);
    detail::ready_product<1>(training, tokens_, gradient, tokens);
    return redistribute<typename Split::residual>(ops::contract<1>(gradient, detail::operand(tokens_)));
  }

 private:
  weight tokens_;
};

/// Token and position embeddings, whose token table is sharded over the model axis and also serves as output layer
/// (Press and Wolf, 2017, arXiv 1608.05859).
/// @tparam T  the element type
/// @tparam Split  a TensorParallel
template <class T, class Split>
class ParallelEmbedding : private ParallelOutput<T, Split> {
  using Output = ParallelOutput<T, Split>;

 public:
  /// @param context  the maximum length of a sequence
  /// @param tokens, positions  tokens(index) and positions(index) return the first weights at an index of (vocabulary,
  ///   width) and (context, width)
  /// @param uses  of the token table in a step: 1 where `logits` is not called
  template <class F, class G>
  ParallelEmbedding(const std::string& name, const typename Split::mesh& mesh, std::size_t vocabulary,
                    std::size_t context, std::size_t width, F tokens, G positions, int uses = 2)
      : Output(name + ".tokens", mesh, vocabulary, width, std::move(tokens), {.uses = uses}),
        positions_(name + ".positions", mesh, {context, width}, std::move(positions)) {}

  /// Calls f(parameter) for every TensorParameter.
  template <class F>
  void for_each_parameter(F&& f) const {
    f(tokens());
    f(positions_);
  }
  [[nodiscard]] const auto& tokens() const noexcept { return Output::tokens(); }

  /// Returns (batch, length, width) in the residual layout, from ids (batch, length). Collective over the model axis.
  /// @throws InvalidArgument on every rank if the length exceeds the context
  template <class Ids, class Training>
  [[nodiscard]] auto forward(const Ids& ids, Training& training) const {
    if (const auto length = ids.extent(1), context = positions_.extents()[0]; length > context)
      throw InvalidArgument("invalid length " + std::to_string(length) + " of sequences: must not exceed the context " +
                                std::to_string(context) + " of '" + positions_.name() + "'",
                            {.operation = "ParallelEmbedding", .rank = ids.mesh().rank(), .size = ids.mesh().size()});
    const auto weights = training.unshard(tokens(), positions_);
    const auto rows = redistribute<typename Split::residual>(ops::embedding(ids, tokens()));  // one rank's, plus zeros
    const auto& x = detail::computed(rows);
    if constexpr (Split::ring) return ops::add(x, ops::embedding(positions_of(x), detail::computed(positions_)));
    const std::size_t first = x.offset()[1];
    return rules::apply<detail::AddPositions>(
        x, detail::computed(positions_), [&](auto stream, auto in, auto table, auto out) {
          using detail::add_to_rows;
          add_to_rows(stream, detail::as_matrix(in, 1), detail::rows_of(table, first, in.extent(1)),
                      detail::as_matrix(out, 1));
        });
  }
  /// Declares the gradients of both tables ready, from that of the result. Collective over the model axis.
  template <class Ids, class G, class Training>
  void backward(const Ids& ids, const G& gradient, Training& training) const {
    const auto weights = training.unshard(tokens(), positions_);
    training.ready(tokens(), ops::embedding_backward(detail::extents_of(tokens()), ids,
                                                     redistribute<typename Split::tokens>(gradient)));
    if constexpr (Split::ring)
      return training.ready(positions_,
                            ops::embedding_backward(detail::extents_of(positions_), positions_of(gradient), gradient));
    const std::size_t first = gradient.offset()[1];
    training.ready(positions_,
                   rules::apply<detail::PositionsGradient>(
                       detail::extents_of(positions_), gradient, [&](auto stream, auto, auto terms, auto out) {
                         using detail::sum_of_rows;
                         fill(stream, out.values(), 0);
                         sum_of_rows(stream, detail::as_matrix(terms, 1), detail::rows_of(out, first, terms.extent(1)));
                       }));
  }

  using Output::logits;
  using Output::logits_backward;

 private:
  /// Returns the positions of this rank's tokens, (batch, length), which with a ring are not consecutive.
  template <class X>
  static auto positions_of(const X& x) {
    const auto order = Split::order(x.mesh(), x.extent(1));
    return generate<std::uint32_t, typename Split::residual>(
        x.mesh(), {x.extent(0), x.extent(1)}, [=](const Extents<2>& index) { return order.position(index[1]); });
  }

  typename Split::template weight<T, 2> positions_;
};

}  // namespace layers

}  // namespace distx::inline DISTX_ABI
