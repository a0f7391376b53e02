// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/layers/detail/residual_branch.hpp"
#include "distx/tensor/ops/ring_attention.hpp"

namespace distx::inline DISTX_ABI::layers {

/// Causal multi-head self-attention whose heads are sharded over the model axis; with a context axis over both, while
/// it looks at whole sequences, unless that axis is a Ring.
///
/// `forward` and `backward` map (batch, length, width) tensors of the residual layout to the same shape.
/// @tparam T  the element type
/// @tparam Split  a TensorParallel
template <class T, class Split>
class ParallelAttention : public detail::ResidualBranch<ParallelAttention<T, Split>, Split> {
  using Model = typename Split::model;
  using Tokens = typename Split::template tensor<T, 3, typename Split::tokens>;
  using Projected = typename Split::template tensor<T, 5, typename Split::template heads<3>>;
  using Attended = typename Split::template tensor<T, 4, typename Split::tokens, Shard<2, Model>>;
  using LogSums = typename Split::template tensor<double, 3, typename Split::tokens, Shard<2, Model>>;

 public:
  /// Tokens; queries, keys and values; the outputs of the heads; and with ring attention the log sums.
  using activations = std::conditional_t<Split::ring, Activations<Tokens, Projected, Attended, LogSums>,
                                         Activations<Tokens, Projected, Attended>>;

  /// @param projections  projections(index) returns the first weight at an index of (width, 3, heads, size), where the
  ///   second dimension is queries, keys and values
  /// @param output  output(index) returns the first weight at an index of (heads, size, width)
  /// @throws InvalidArgument unless heads divides width
  template <class F, class G>
  ParallelAttention(const std::string& name, const typename Split::mesh& mesh, std::size_t width, std::size_t heads,
                    F projections, G output)
      : projections_(name + ".projections", mesh, {width, 3, heads, size_of_head(name, width, heads)},
                     std::move(projections)),
        output_(name + ".output", mesh, {heads, width / heads, width}, std::move(output)) {}

  /// Calls f(parameter) for every TensorParameter.
  template <class F>
  void for_each_parameter(F&& f) const {
    projections_.for_each_parameter(f);
    output_.for_each_parameter(f);
  }

  /// Computes this rank's terms of the result, Partial over the model axis, from its tokens. Collective over the
  /// context axis.
  template <class Training>
  [[nodiscard]] auto terms(Tokens tokens, Training& training) const {
    Projected projected = redistribute<typename Split::template heads<3>>(projections_.forward(tokens, training));
    const auto result = [&](Attended attended, auto... log_sums) {
      auto terms = output_.forward(attended, training);
      return Forward{std::move(terms), activations(training, std::move(tokens), std::move(projected),
                                                   std::move(attended), std::move(log_sums)...)};
    };
    if constexpr (Split::ring) {
      auto [attended, log_sums] = ops::ring_attention(projected);
      return result(std::move(attended), std::move(log_sums));
    } else {
      return result(redistribute<typename Split::tokens, Shard<2, Model>>(ops::causal_attention(projected)));
    }
  }
  /// Returns the terms of the tokens' gradient, Partial over the model axis. Collective over the context axis.
  template <class G, class Training>
  [[nodiscard]] auto terms_backward(activations kept, const G& gradient, Training& training) const {
    const auto& projected = std::get<1>(kept.kept());
    const auto& attended = std::get<2>(kept.kept());
    const auto of_heads =
        redistribute<typename Split::template heads<2>>(output_.backward(attended, gradient, training));
    const auto of_projected = [&] {
      if constexpr (Split::ring)
        return ops::ring_attention_backward(projected, attended, std::get<3>(kept.kept()), of_heads);
      else
        return redistribute<typename Split::tokens, Shard<3, Model>>(
            ops::causal_attention_backward(projected, of_heads));
    };
    return projections_.backward(std::get<0>(kept.kept()), of_projected(), training);
  }
  /// Returns the output layer.
  [[nodiscard]] const auto& output() const { return output_; }

 private:
  static std::size_t size_of_head(const std::string& name, std::size_t width, std::size_t heads) {
    if (heads == 0 || width % heads != 0)
      throw InvalidArgument("invalid number of heads " + std::to_string(heads) + " of '" + name +
                                "': must divide the width " + std::to_string(width),
                            {.operation = "ParallelAttention"});
    return width / heads;
  }

  ColumnParallel<T, Split, 4, 2> projections_;
  RowParallel<T, Split, 3> output_;
};

}  // namespace distx::inline DISTX_ABI::layers
