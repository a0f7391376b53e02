// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>

#include "distx/parallel/tensor_parameter.hpp"
#include "distx/tensor/redistribute.hpp"

namespace distx {

/// How a transformer's layers are split over a mesh (Shoeybi et al., 2019, arXiv 1909.08053): batches over the axis
/// `Data`; attention heads and the inner width of a perceptron over the axis `Model`.
///
/// Activations are (batch, length, width). With `SequenceParallel` (Korthikanti et al., 2022, arXiv 2205.05198) the
/// ranks of the model axis share out the tokens between the layers, so that norms and residuals are not done, nor
/// kept, on each of them.
template <detail::MeshType MeshT, class Data, class Model, bool SequenceParallel = false>
struct TensorParallel {
  using mesh = MeshT;
  using data = Data;
  using model = Model;
  /// Between layers.
  using stream = Layout<Shard<0, Data>, std::conditional_t<SequenceParallel, Shard<1, Model>, Replicated<Model>>>;
  /// What a split weight is multiplied with: all tokens of this rank's batches.
  using tokens = Layout<Shard<0, Data>>;

  template <class T, std::size_t Rank, class... Ps>
  using weight = TensorParameter<T, Rank, MeshT, Layout<Ps...>>;
  template <class T, std::size_t Rank, class... Ps>
  using tensor = DistTensor<T, Rank, MeshT, Layout<Ps...>>;
};

namespace detail {

inline constexpr auto zero_at = [](const auto&) { return 0.0F; };
inline constexpr auto one_at = [](const auto&) { return 1.0F; };
inline const ParameterOptions undecayed{.group = {.weight_decay = 0.0}};

/// What `forward` has kept for `backward`, once.
/// @throws MismatchError where there is nothing
template <class X>
[[nodiscard]] X taken(std::optional<X>& kept, std::string_view layer) {
  if (!kept)
    throw MismatchError("there is nothing to go back from: call forward once before each backward",
                        {.operation = layer});
  X value = std::move(*kept);
  kept.reset();
  return value;
}

template <std::size_t Rank>
Extents<Rank - 1> without_first(const Extents<Rank>& extents) {
  Extents<Rank - 1> rest{};
  std::copy(extents.begin() + 1, extents.end(), rest.begin());
  return rest;
}

}  // namespace detail

}  // namespace distx
