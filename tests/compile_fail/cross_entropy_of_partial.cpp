// expect: distx: cross_entropy: the logits are Partial and cross_entropy is not linear; redistribute them first
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/tensor/ops.hpp"
#include "distx/tensor/redistribute.hpp"

struct Model {};
template <std::size_t Rank, class... Ps>
using Tensor = distx::DistTensor<float, Rank, distx::Mesh<Model>, distx::Layout<Ps...>>;

using Targets = distx::DistTensor<int, 1, distx::Mesh<Model>, distx::Layout<>>;

auto losses(const Tensor<2, distx::Partial<Model>>& logits, const Targets& targets) {
#ifndef DISTX_POSITIVE
  return distx::ops::cross_entropy(logits, targets);
#else
  return distx::ops::cross_entropy(distx::redistribute<distx::Shard<1, Model>>(logits), targets);
#endif
}
