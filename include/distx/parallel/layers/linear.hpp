// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/layers/tensor_parallel.hpp"
#include "distx/tensor/ops/contract.hpp"
#include "distx/tensor/ops/trailing.hpp"

namespace distx {

/// A linear layer whose outputs are split over the model axis: from (batch, length, inputs), with all tokens, to
/// (batch, length, outputs…), without communication.
///
/// The weight is (inputs, outputs…), and dimension `Cut` of it is sharded. The gradient of the inputs is Partial: each
/// rank has the terms of its own outputs.
template <class T, class Split, std::size_t Rank = 2, std::size_t Cut = 1>
class ColumnParallel {
  using Model = typename Split::model;

 public:
  /// `initial(index)` gives the first weights; biases are zero at first. Options are the weight's.
  template <class F>
  ColumnParallel(const std::string& name, const typename Split::mesh& mesh, const Extents<Rank>& extents, F initial,
                 const ParameterOptions& options = {})
      : weight_(name + ".weight", mesh, extents, std::move(initial), options),
        bias_(name + ".bias", mesh, detail::without_first(extents), detail::zero_at, detail::undecayed) {}

  template <class F>
  void for_each_parameter(F&& f) const {
    f(weight_);
    f(bias_);
  }

  /// Keeps nothing: `backward` is passed the same tokens.
  template <class X, class Training>
  [[nodiscard]] auto forward(const X& tokens, Training& training) const {
    const auto weights = training.unshard(weight_, bias_);
    return add_trailing(contract<1>(tokens, weight_), bias_);
  }
  /// The terms of the tokens' gradient; the gradients of weight and bias are ready then.
  template <class X, class G, class Training>
  [[nodiscard]] auto backward(const X& tokens, const G& gradient, Training& training) const {
    const auto weights = training.unshard(weight_, bias_);
    training.ready(bias_, sum_leading<Rank - 1>(gradient));
    training.ready(weight_, contract_weight<1>(tokens, gradient));
    return contract_input<1>(gradient, weight_);
  }

 private:
  typename Split::template weight<T, Rank, Shard<Cut, Model>> weight_;
  typename Split::template weight<T, Rank - 1, Shard<Cut - 1, Model>> bias_;
};

/// A linear layer whose inputs are split over the model axis: from (batch, length, inputs…) to (batch, length,
/// outputs), which are Partial: `add_bias` is for their sum.
///
/// The weight is (inputs…, outputs), and dimension 0 of it is sharded.
template <class T, class Split, std::size_t Rank = 2>
class RowParallel {
  using Model = typename Split::model;

 public:
  /// `initial(index)` gives the first weights; biases are zero at first. Options are the weight's.
  template <class F>
  RowParallel(const std::string& name, const typename Split::mesh& mesh, const Extents<Rank>& extents, F initial,
              const ParameterOptions& options = {})
      : weight_(name + ".weight", mesh, extents, std::move(initial), options),
        bias_(name + ".bias", mesh, {extents[Rank - 1]}, detail::zero_at, detail::undecayed) {}

  template <class F>
  void for_each_parameter(F&& f) const {
    f(weight_);
    f(bias_);
  }

  /// The terms of the outputs; keeps nothing.
  template <class X, class Training>
  [[nodiscard]] auto forward(const X& inputs, Training& training) const {
    const auto weights = training.unshard(weight_);
    return contract<Rank - 1>(inputs, weight_);
  }
  /// The gradient of the inputs, from that of the outputs of all tokens; that of the weight is ready then.
  template <class X, class G, class Training>
  [[nodiscard]] auto backward(const X& inputs, const G& gradient, Training& training) const {
    const auto weights = training.unshard(weight_);
    training.ready(weight_, contract_weight<Rank - 1>(inputs, gradient));
    return contract_input<Rank - 1>(gradient, weight_);
  }
  /// To the stream, once the terms are added up.
  template <class X, class Training>
  [[nodiscard]] auto add_bias(const X& total, Training& training) const {
    const auto weights = training.unshard(bias_);
    return add_trailing(total, bias_);
  }
  template <class G, class Training>
  void add_bias_backward(const G& gradient, Training& training) const {
    training.ready(bias_, sum_leading<1>(gradient));
  }

 private:
  typename Split::template weight<T, Rank, Shard<0, Model>> weight_;
  typename Split::template weight<T, 1> bias_;
};

}  // namespace distx
