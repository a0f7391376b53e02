// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/layers/branch.hpp"
#include "distx/tensor/ops/causal_attention.hpp"

namespace distx {

/// Causal self-attention whose heads are split over the model axis, however many each rank gets.
template <class T, class Split>
class ParallelAttention : public Branch<ParallelAttention<T, Split>, Split> {
  using Data = typename Split::data;
  using Model = typename Split::model;
  using Tokens = typename Split::template tensor<T, 3, typename Split::tokens>;

 public:
  /// `projections(index)` and `output(index)` give the first weights, (width, 3, heads, size) for queries, keys and
  /// values, and (heads, size, width).
  /// @throws MismatchError unless heads divides width
  template <class F, class G>
  ParallelAttention(const std::string& name, const typename Split::mesh& mesh, std::size_t width, std::size_t heads,
                    F projections, G output)
      : projections_(name + ".projections", mesh, {width, 3, heads, size_of_head(name, width, heads)},
                     std::move(projections)),
        output_(name + ".output", mesh, {heads, width / heads, width}, std::move(output)) {}

  template <class F>
  void for_each_parameter(F&& f) const {
    projections_.for_each_parameter(f);
    output_.for_each_parameter(f);
  }

  template <class Training>
  [[nodiscard]] auto terms(Tokens tokens, Training& training) {
    tokens_.emplace(std::move(tokens));
    projected_.emplace(projections_.forward(*tokens_, training));
    attended_.emplace(causal_attention(*projected_));
    return output_.forward(*attended_, training);
  }
  template <class G, class Training>
  [[nodiscard]] auto terms_backward(const G& gradient, Training& training) {
    const auto tokens = detail::taken(tokens_, "ParallelAttention");
    const auto projected = detail::taken(projected_, "ParallelAttention");
    const auto attended = detail::taken(attended_, "ParallelAttention");
    const auto slope = causal_attention_backward(projected, output_.backward(attended, gradient, training));
    return projections_.backward(tokens, slope, training);
  }
  [[nodiscard]] const auto& output() const { return output_; }

 private:
  static std::size_t size_of_head(const std::string& name, std::size_t width, std::size_t heads) {
    if (heads == 0 || width % heads != 0)
      throw MismatchError("'" + name + "' cannot share a width of " + std::to_string(width) + " among " +
                              std::to_string(heads) + " heads: choose a width that the heads divide",
                          {.operation = "ParallelAttention"});
    return width / heads;
  }

  ColumnParallel<T, Split, 4, 2> projections_;
  RowParallel<T, Split, 3> output_;
  std::optional<Tokens> tokens_;
  std::optional<typename Split::template tensor<T, 5, Shard<0, Data>, Shard<3, Model>>> projected_;
  std::optional<typename Split::template tensor<T, 4, Shard<0, Data>, Shard<2, Model>>> attended_;
};

}  // namespace distx
