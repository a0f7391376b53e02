// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/layers/activations.hpp"
#include "distx/parallel/tensor_parameter.hpp"
#include "distx/tensor/ops/contract.hpp"
#include "distx/tensor/ops/elementwise.hpp"
#include "distx/tensor/ops/zigzag.hpp"
#include "distx/tensor/redistribute.hpp"

namespace distx::inline DISTX_ABI {

namespace layers {

/// Chooses ring attention along a context axis: a TensorParallel's argument `Context` is `Ring<Axis>`.
template <class Axis>
struct Ring {};

}  // namespace layers

namespace detail {

/// A shard along an axis, or no placement without one.
template <std::size_t Dim, class Axis>
using ShardAlong = std::conditional_t<std::is_void_v<Axis>, Layout<>, Shard<Dim, Axis>>;
/// Terms along an axis, or no placement without one.
template <class Axis>
using PartialAlong = std::conditional_t<std::is_void_v<Axis>, Layout<>, Partial<Axis>>;

/// The axis of an argument `Context`, and whether attention along it is ring attention.
template <class Context>
struct ContextAxis {
  using type = Context;
  static constexpr bool ring = false;
};
template <class Axis>
struct ContextAxis<layers::Ring<Axis>> {
  using type = Axis;
  static constexpr bool ring = true;
};

}  // namespace detail

namespace layers {

/// Tensor parallelism of a transformer (Shoeybi et al., 2019, arXiv 1909.08053): batches are sharded over the axis
/// `Data`, attention heads and the inner width of MLPs over the axis `Model`.
///
/// Activations have extents (batch, length, width). Layers with weights of 16-bit types compute in float; so are their
/// activations and gradients, and `ready` rounds the reduced gradients. In a GPU's memory, products with weights and
/// their gradients first round both operands to the weights' type, and sum in float.
/// @tparam SequenceParallel  whether tokens of the residual stream are sharded over the model axis too (Korthikanti et
///   al., 2022, arXiv 2205.05198), so that norms and residuals are neither repeated nor stored on every rank
/// @tparam Space  the memory of weights and activations; for a GPU's, include distx/cuda_blas.hpp
/// @tparam Context  an axis over which the tokens of each sequence are sharded everywhere but in attention, which gets
///   whole sequences of some heads by an all-to-all (Jacobs et al., 2023, arXiv 2309.14509); void without one. With
///   `Ring<Axis>` attention is `ops::ring_attention`, and tokens are in the order that `order` returns
/// @tparam Experts  an axis over which batches are sharded too, and the experts of ParallelExperts; void without one. A
///   training along `Data` sums gradients over it
template <detail::MeshType MeshT, class Data, class Model, bool SequenceParallel = false, MemorySpace Space = Host,
          class Context = void, class Experts = void>
struct TensorParallel {
  using mesh = MeshT;
  using data = Data;
  using model = Model;
  using space = Space;
  using context = typename detail::ContextAxis<Context>::type;
  static constexpr bool ring = detail::ContextAxis<Context>::ring;  ///< whether attention is ring attention
  using experts = Experts;
  /// The layout of whole sequences: this rank's batches.
  using batches = Layout<Shard<0, Data>, detail::ShardAlong<0, Experts>>;
  /// The layout of a sharded weight's other operand: this rank's tokens.
  using tokens = Layout<batches, detail::ShardAlong<1, context>>;
  /// The layout of the residual stream between layers.
  using residual = Layout<tokens, std::conditional_t<SequenceParallel, Shard<1, Model>, Replicated<Model>>>;
  /// The layout of this rank's heads, which are dimension `Dim`: of whole sequences, or with ring attention of this
  /// rank's tokens.
  template <std::size_t Dim>
  using heads = Layout<batches, Shard<Dim, Model>, detail::ShardAlong<ring ? 1 : Dim, context>>;

  /// A weight of the model.
  template <class T, std::size_t Rank, class... Ps>
  using weight = TensorParameter<T, Rank, MeshT, Layout<Ps...>, Space>;
  /// An activation of layers with weights of type T.
  template <class T, std::size_t Rank, class... Ps>
  using tensor = DistTensor<accumulator_t<T>, Rank, MeshT, Layout<Ps...>, Space>;

  /// Returns the order of tokens in dimension 1: that of positions but with ring attention.
  /// @throws InvalidArgument for a length that ring attention does not support on this mesh
  [[nodiscard]] static ops::Zigzag order(const MeshT& mesh, std::size_t length) {
    if constexpr (ring)
      return {length, mesh.template size<context>(), {.operation = "order", .rank = mesh.rank(), .size = mesh.size()}};
    else
      return {length, 1};
  }
};

}  // namespace layers

namespace detail {

inline constexpr auto zero_at = [](const auto&) { return 0.0F; };
inline constexpr auto one_at = [](const auto&) { return 1.0F; };
inline const ParameterOptions undecayed{.group = {.weight_decay = 0.0}};

/// Returns the options of a matrix whose rows are the layer's inputs.
[[nodiscard]] inline ParameterOptions with_rows(ParameterOptions options, std::size_t inputs) {
  options.rows = inputs;
  return options;
}

/// Returns a weight in the type that layers compute in, float for 16-bit types: itself, or a copy.
template <DistributedTensor W>
[[nodiscard]] decltype(auto) computed(const W& weight) {
  using T = value_of<W>;
  if constexpr (std::same_as<accumulator_t<T>, T>)
    return (weight);
  else
    return ops::cast<accumulator_t<T>>(weight);
}

/// Whether the space has a product of floats, which it rounds, with weights of this 16-bit type.
template <class T, class Space>
inline constexpr bool has_mixed_product =
    !std::same_as<T, accumulator_t<T>> &&
    requires(typename Space::stream stream, MatrixRef<float, Space> out, MatrixRef<const float, Space> x,
             MatrixRef<const T, Space> w) { local_matmul(stream, out, x, w); };
/// Returns a weight as the right operand of a product with activations or their gradients.
template <DistributedTensor W>
[[nodiscard]] decltype(auto) operand(const W& weight) {
  if constexpr (has_mixed_product<value_of<W>, typename W::space>)
    return (weight);
  else
    return computed(weight);
}

/// Returns a tensor without memory, for operations that use only the extents and the layout of a weight, and the type
/// that layers compute in.
template <DistributedTensor W>
[[nodiscard]] auto extents_of(const W& weight) {
  using T = const accumulator_t<value_of<W>>;
  using Space = typename W::space;
  return DistTensorRef<T, rank_of<W>, mesh_of<W>, layout_of<W>, Space>({weight.mesh(), weight.extents()},
                                                                       {nullptr, weight.local().size()});
}

/// Declares the gradient of a weight ready: contract_weight<K>(a, b). A pipeline::DeferredWeights computes the product
/// later.
template <std::size_t K, class W, class A, class B, class Training>
void ready_product(Training& training, const W& weight, const A& a, const B& b) {
  constexpr auto product = [](const auto& x, const auto& y) {
    if constexpr (has_mixed_product<value_of<W>, typename W::space>)
      return ops::contract_weight<K>(x, ops::cast<value_of<W>>(y));
    else
      return ops::contract_weight<K>(x, y);
  };
  if constexpr (requires { training.ready_later(weight, product, a, b); })
    training.ready_later(weight, product, a, b);
  else
    training.ready(weight, product(a, b));
}

template <std::size_t Rank>
Extents<Rank - 1> without_first(const Extents<Rank>& extents) {
  Extents<Rank - 1> rest{};
  std::copy(extents.begin() + 1, extents.end(), rest.begin());
  return rest;
}

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
