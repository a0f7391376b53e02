// expect: distx: layer_norm: the operand is Partial and layer_norm is not linear; redistribute it first
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/tensor/ops.hpp"
#include "distx/tensor/redistribute.hpp"

struct Model {};
template <std::size_t Rank, class... Ps>
using Tensor = distx::DistTensor<float, Rank, distx::Mesh<Model>, distx::Layout<Ps...>>;

auto normal(const Tensor<2, distx::Partial<Model>>& x, const Tensor<1>& gain, const Tensor<1>& bias) {
#ifndef DISTX_POSITIVE
  return distx::ops::layer_norm(x, gain, bias);
#else
  return distx::ops::layer_norm(distx::redistribute<>(x), gain, bias);
#endif
}
