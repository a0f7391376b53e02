// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/layers/linear.hpp"
#include "distx/tensor/activations.hpp"

namespace distx {

/// Two linear layers with a GELU between them, which is done where the first one's outputs are: one all-reduce forward
/// and one backward, or a gather and a reduce-scatter each way where tokens are shared out.
template <class T, class Split>
class ParallelMlp {
 public:
  /// `wide(index)` and `narrow(index)` give the first weights, (width, inner) and (inner, width).
  template <class F, class G>
  ParallelMlp(const std::string& name, const typename Split::mesh& mesh, std::size_t width, std::size_t inner, F wide,
              G narrow)
      : wide_(name + ".wide", mesh, {width, inner}, std::move(wide)),
        narrow_(name + ".narrow", mesh, {inner, width}, std::move(narrow)) {}

  template <class F>
  void for_each_parameter(F&& f) const {
    wide_.for_each_parameter(f);
    narrow_.for_each_parameter(f);
  }

  template <class X, class Training>
  [[nodiscard]] auto forward(X&& x, Training& training) {
    inner_.emplace(wide_.forward(std::forward<X>(x), training));
    return narrow_.forward(gelu(*inner_), training);
  }
  template <class G, class Training>
  [[nodiscard]] auto backward(const G& gradient, Training& training) {
    return wide_.backward(gelu_backward(*inner_, narrow_.backward(gradient, training)), training);
  }

 private:
  ColumnParallel<T, Split> wide_;
  RowParallel<T, Split> narrow_;
  std::optional<
      typename Split::template tensor<T, 3, Shard<0, typename Split::data>, Shard<2, typename Split::model>>>
      inner_;
};

}  // namespace distx
