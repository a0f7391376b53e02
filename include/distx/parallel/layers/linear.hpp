// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/layers/tensor_parallel.hpp"
#include "distx/tensor/ops/trailing.hpp"

namespace distx::inline DISTX_ABI::layers {

/// A linear layer whose outputs are sharded over the model axis: from (batch, length, inputs), with all tokens, to
/// (batch, length, outputs…). Local.
///
/// The weight has extents (inputs, outputs…) and is sharded in dimension `Dimension`. The gradient of the inputs is
/// Partial over the model axis.
/// @tparam Rank  the number of dimensions of the weight
template <class T, class Split, std::size_t Rank = 2, std::size_t Dimension = 1>
class ColumnParallel {
  using Model = typename Split::model;

 public:
  /// @param extents  of the weight
  /// @param initial  initial(index) returns the first weight at an index; biases are zeros at first
  /// @param options  of the weight; `.rows` is set
  template <class F>
  ColumnParallel(const std::string& name, const typename Split::mesh& mesh, const Extents<Rank>& extents, F initial,
                 const ParameterOptions& options = {})
      : weight_(name + ".weight", mesh, extents, std::move(initial), detail::with_rows(options, extents[0])),
        bias_(name + ".bias", mesh, detail::without_first(extents), detail::zero_at, detail::undecayed) {}

  /// Calls f(parameter) for every TensorParameter.
  template <class F>
  void for_each_parameter(F&& f) const {
    f(weight_);
    f(bias_);
  }

  /// Returns the outputs; `backward` takes the same tokens again.
  template <class X, class Training>
  [[nodiscard]] auto forward(const X& tokens, Training& training) const {
    const auto weights = training.unshard(weight_, bias_);
    return ops::add_trailing(ops::contract<1>(tokens, detail::operand(weight_)), detail::computed(bias_));
  }
  /// Returns the gradient of the tokens, Partial, and declares the gradients of weight and bias ready.
  template <class X, class G, class Training>
  [[nodiscard]] auto backward(const X& tokens, const G& gradient, Training& training) const {
    const auto weights = training.unshard(weight_, bias_);
    training.ready(bias_, ops::sum_leading<Rank - 1>(gradient));
    detail::ready_product<1>(training, weight_, tokens, gradient);
    return ops::contract_input<1>(gradient, detail::operand(weight_));
  }

 private:
  typename Split::template weight<T, Rank, Shard<Dimension, Model>> weight_;
  typename Split::template weight<T, Rank - 1, Shard<Dimension - 1, Model>> bias_;
};

/// A linear layer whose inputs are sharded over the model axis: from (batch, length, inputs…) to (batch, length,
/// outputs), Partial over the model axis; `add_bias` takes their sum. Local.
///
/// The weight has extents (inputs…, outputs) and is sharded in dimension 0.
/// @tparam Rank  the number of dimensions of the weight
template <class T, class Split, std::size_t Rank = 2>
class RowParallel {
  using Model = typename Split::model;

 public:
  /// @param extents  of the weight
  /// @param initial  initial(index) returns the first weight at an index; biases are zeros at first
  /// @param options  of the weight; `.rows` is set
  template <class F>
  RowParallel(const std::string& name, const typename Split::mesh& mesh, const Extents<Rank>& extents, F initial,
              const ParameterOptions& options = {})
      : weight_(name + ".weight", mesh, extents, std::move(initial),
                detail::with_rows(options, volume(extents) / std::max<std::size_t>(extents[Rank - 1], 1))),
        bias_(name + ".bias", mesh, {extents[Rank - 1]}, detail::zero_at, detail::undecayed) {}

  /// Calls f(parameter) for every TensorParameter.
  template <class F>
  void for_each_parameter(F&& f) const {
    f(weight_);
    f(bias_);
  }

  /// Returns the outputs without bias, Partial.
  template <class X, class Training>
  [[nodiscard]] auto forward(const X& inputs, Training& training) const {
    const auto weights = training.unshard(weight_);
    return ops::contract<Rank - 1>(inputs, detail::operand(weight_));
  }
  /// Returns the gradient of the inputs from that of the outputs, and declares the weight's gradient ready.
  template <class X, class G, class Training>
  [[nodiscard]] auto backward(const X& inputs, const G& gradient, Training& training) const {
    const auto weights = training.unshard(weight_);
    detail::ready_product<Rank - 1>(training, weight_, inputs, gradient);
    return ops::contract_input<Rank - 1>(gradient, detail::operand(weight_));
  }
  /// Returns the reduced outputs with the bias added.
  template <class X, class Training>
  [[nodiscard]] auto add_bias(const X& total, Training& training) const {
    const auto weights = training.unshard(bias_);
    return ops::add_trailing(total, detail::computed(bias_));
  }
  /// Declares the bias's gradient ready.
  template <class G, class Training>
  void add_bias_backward(const G& gradient, Training& training) const {
    training.ready(bias_, ops::sum_leading<1>(gradient));
  }

 private:
  typename Split::template weight<T, Rank, Shard<0, Model>> weight_;
  typename Split::template weight<T, 1> bias_;
};

}  // namespace distx::inline DISTX_ABI::layers
