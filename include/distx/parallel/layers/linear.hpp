// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/layers/tensor_parallel.hpp"
#include "distx/tensor/contract.hpp"
#include "distx/tensor/trailing.hpp"

namespace distx {

/// A linear layer whose outputs are split over the model axis: from the stream to (batch, length, outputs…).
///
/// The weight is (inputs, outputs…), and dimension `Cut` of it is sharded. Forward gathers the tokens, where they are
/// shared out; backward reduces the gradient of the stream.
template <class T, class Split, std::size_t Rank = 2, std::size_t Cut = 1>
class ColumnParallel {
  using Model = typename Split::model;

 public:
  /// `initial(index)` gives the first weights; biases are zero at first. Options are the weight's.
  template <class F>
  ColumnParallel(const std::string& name, const typename Split::mesh& mesh, const Extents<Rank>& extents, F initial,
                 const ParameterOptions& options = {})
      : weight_(name + ".weight", mesh, extents, std::move(initial), options),
        bias_(name + ".bias", mesh, detail::without_first<1>(extents), detail::zero_at, detail::undecayed) {}

  template <class F>
  void for_each_parameter(F&& f) const {
    f(weight_);
    f(bias_);
  }

  template <class X, class Training>
  [[nodiscard]] auto forward(X&& x, Training& training) {
    const auto weights = training.unshard(weight_, bias_);
    input_.emplace(redistribute<typename Split::tokens>(std::forward<X>(x)));
    return add_trailing(contract<1>(*input_, weight_), bias_);
  }
  /// The gradient of the stream; those of the weights are ready then.
  template <class G, class Training>
  [[nodiscard]] auto backward(const G& gradient, Training& training) {
    const auto weights = training.unshard(weight_, bias_);
    training.ready(bias_, sum_leading<Rank - 1>(gradient));
    training.ready(weight_, contract_weight<1>(*input_, gradient));
    input_.reset();
    return redistribute<typename Split::stream>(contract_input<1>(gradient, weight_));
  }

 private:
  typename Split::template weight<T, Rank, Shard<Cut, Model>> weight_;
  typename Split::template weight<T, Rank - 1, Shard<Cut - 1, Model>> bias_;
  std::optional<typename Split::template tensor<T, 3, typename Split::tokens>> input_;
};

/// A linear layer whose inputs are split over the model axis: from (batch, length, inputs…) to the stream.
///
/// The weight is (inputs…, outputs), and dimension 0 of it is sharded. Forward reduces its result; backward gathers the
/// gradient's tokens, where they are shared out.
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

  template <class X, class Training>
  [[nodiscard]] auto forward(X&& x, Training& training) {
    const auto weights = training.unshard(weight_, bias_);
    input_.emplace(std::forward<X>(x));
    return add_trailing(redistribute<typename Split::stream>(contract<Rank - 1>(*input_, weight_)), bias_);
  }
  /// The gradient of the inputs; those of the weights are ready then.
  template <class G, class Training>
  [[nodiscard]] auto backward(const G& gradient, Training& training) {
    const auto weights = training.unshard(weight_, bias_);
    training.ready(bias_, sum_leading<1>(gradient));
    const auto tokens = redistribute<typename Split::tokens>(gradient);
    training.ready(weight_, contract_weight<Rank - 1>(*input_, tokens));
    input_.reset();
    return contract_input<Rank - 1>(tokens, weight_);
  }

 private:
  typename Split::template weight<T, Rank, Shard<0, Model>> weight_;
  typename Split::template weight<T, 1> bias_;
  std::optional<typename Split::template tensor<T, Rank + 1, Shard<0, typename Split::data>, Shard<2, Model>>> input_;
};

}  // namespace distx
