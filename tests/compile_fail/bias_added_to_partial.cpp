// expect: distx: add_bias: the operand is Partial, so the bias would be added once per rank; redistribute the operand first
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/tensor/ops.hpp"
#include "distx/tensor/redistribute.hpp"

struct Model {};
template <std::size_t Rank, class... Ps>
using Tensor = distx::DistTensor<float, Rank, distx::Mesh<Model>, distx::Layout<Ps...>>;

auto layer(const Tensor<2, distx::Partial<Model>>& x, const Tensor<1>& bias) {
#ifndef DISTX_POSITIVE
  return distx::ops::add_bias(x, bias);
#else
  return distx::ops::add_bias(distx::redistribute<>(x), bias);
#endif
}
