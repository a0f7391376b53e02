// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/layers/branch.hpp"
#include "distx/tensor/ops/activations.hpp"

namespace distx {

/// Two linear layers with a GELU between them, which is done where the first one's outputs are.
template <class T, class Split>
class ParallelMlp : public Branch<ParallelMlp<T, Split>, Split> {
  using Inner = typename Split::template tensor<T, 3, Shard<0, typename Split::data>, Shard<2, typename Split::model>>;
  using Tokens = typename Split::template tensor<T, 3, typename Split::tokens>;

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

  template <class Training>
  [[nodiscard]] auto terms(Tokens tokens, Training& training) {
    tokens_.emplace(std::move(tokens));
    inner_.emplace(wide_.forward(*tokens_, training));
    active_.emplace(gelu(*inner_));
    return narrow_.forward(*active_, training);
  }
  template <class G, class Training>
  [[nodiscard]] auto terms_backward(const G& gradient, Training& training) {
    const auto tokens = detail::taken(tokens_, "ParallelMlp");
    const auto inner = detail::taken(inner_, "ParallelMlp");
    const auto active = detail::taken(active_, "ParallelMlp");
    const auto slope = gelu_backward(inner, narrow_.backward(active, gradient, training));
    return wide_.backward(tokens, slope, training);
  }
  [[nodiscard]] const auto& output() const { return narrow_; }

 private:
  ColumnParallel<T, Split> wide_;
  RowParallel<T, Split> narrow_;
  std::optional<Tokens> tokens_;
  std::optional<Inner> inner_, active_;
};

}  // namespace distx
