// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/layers/tensor_parallel.hpp"
#include "distx/tensor/ops/contract.hpp"
#include "distx/tensor/ops/embedding.hpp"

namespace distx {

/// x (batch, length, width) plus the row of a table (context, width) that each token's place in its sequence has.
struct AddPlaces {
  static constexpr std::string_view name = "add_places";
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
/// The gradient of that table, of which only the extents matter, from that of the result.
struct PlacesGradient {
  static constexpr std::string_view name = "places_gradient";
  static constexpr rules::AxisPlacement on(rules::AxisPlacement table, rules::AxisPlacement gradient) {
    if (!table.is_replicated()) return rules::unsupported;
    if (gradient.is_replicated()) return rules::replicated;
    if (gradient.is_shard(0) || gradient.is_shard(1) || gradient.is_sum()) return rules::partial_sum;
    return rules::unsupported;
  }
  static Extents<2> extents(const Extents<2>& table, const Extents<3>& gradient) {
    (void)AddPlaces::extents(gradient, table);
    return table;
  }
};

/// A vector for each token of a vocabulary, which is split over the model axis, and one for each place in a sequence.
/// The tokens' vectors are also how each token is recognised at the output (Press and Wolf, 2017, arXiv 1608.05859).
template <class T, class Split>
class ParallelEmbedding {
 public:
  /// `tokens(index)` and `places(index)` give the first weights, (vocabulary, width) and (context, width).
  template <class F, class G>
  ParallelEmbedding(const std::string& name, const typename Split::mesh& mesh, std::size_t vocabulary,
                    std::size_t context, std::size_t width, F tokens, G places)
      : tokens_(name + ".tokens", mesh, {vocabulary, width}, std::move(tokens), {.uses = 2}),
        places_(name + ".places", mesh, {context, width}, std::move(places)) {}

  template <class F>
  void for_each_parameter(F&& f) const {
    f(tokens_);
    f(places_);
  }

  /// To the stream, from ids (batch, length): the one all-reduce, or reduce-scatter, of an embedding.
  template <class Ids, class Training>
  [[nodiscard]] auto forward(const Ids& ids, Training& training) const {
    const auto weights = training.unshard(tokens_, places_);
    const auto x = redistribute<typename Split::stream>(embedding(ids, tokens_));
    const std::size_t first = x.offset()[1];
    return rules::apply<AddPlaces>(x, places_, [&](auto in, auto table, auto out) {
      for (std::size_t b = 0; b < in.extent(0); ++b)
        for (std::size_t t = 0; t < in.extent(1); ++t)
          for (std::size_t i = 0; i < in.extent(2); ++i) out(b, t, i) = in(b, t, i) + table(first + t, i);
    });
  }
  template <class Ids, class G, class Training>
  void backward(const Ids& ids, const G& gradient, Training& training) const {
    const auto weights = training.unshard(tokens_, places_);
    training.ready(tokens_, embedding_backward(tokens_, ids, redistribute<typename Split::tokens>(gradient)));
    const std::size_t first = gradient.offset()[1];
    training.ready(places_, rules::apply<PlacesGradient>(places_, gradient, [&](auto, auto slope, auto out) {
                     fill(typename G::space::stream{}, out.values(), T{});
                     for (std::size_t b = 0; b < slope.extent(0); ++b)
                       for (std::size_t t = 0; t < slope.extent(1); ++t)
                         for (std::size_t i = 0; i < slope.extent(2); ++i) out(first + t, i) += slope(b, t, i);
                   }));
  }

  /// How much each token of the vocabulary is to be expected, (batch, length, vocabulary), sharded in the last: from
  /// the output's tokens, (batch, length, width).
  template <class X, class Training>
  [[nodiscard]] auto logits(const X& tokens, Training& training) const {
    const auto weights = training.unshard(tokens_);
    return contract_input<1>(tokens, tokens_);
  }
  /// The gradient of the stream.
  template <class X, class G, class Training>
  [[nodiscard]] auto logits_backward(const X& tokens, const G& gradient, Training& training) const {
    const auto weights = training.unshard(tokens_);
    training.ready(tokens_, contract_weight<1>(gradient, tokens));
    return redistribute<typename Split::stream>(contract<1>(gradient, tokens_));
  }

 private:
  typename Split::template weight<T, 2, Shard<0, typename Split::model>> tokens_;
  typename Split::template weight<T, 2> places_;
};

}  // namespace distx
