// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/layers/linear.hpp"
#include "distx/tensor/causal_attention.hpp"

namespace distx {

/// Causal self-attention whose heads are split over the model axis, however many each rank gets: one all-reduce forward
/// and one backward, or a gather and a reduce-scatter each way where tokens are shared out.
template <class T, class Split>
class ParallelAttention {
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

  template <class X, class Training>
  [[nodiscard]] auto forward(X&& x, Training& training) {
    projected_.emplace(projections_.forward(std::forward<X>(x), training));
    return output_.forward(causal_attention(*projected_), training);
  }
  template <class G, class Training>
  [[nodiscard]] auto backward(const G& gradient, Training& training) {
    return projections_.backward(causal_attention_backward(*projected_, output_.backward(gradient, training)),
                                 training);
  }

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
  std::optional<
      typename Split::template tensor<T, 5, Shard<0, typename Split::data>, Shard<3, typename Split::model>>>
      projected_;
};

}  // namespace distx
