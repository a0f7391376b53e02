// expect: distx: relu_backward, gelu_backward: the gradient's layout differs from the operand's; redistribute the gradient to that layout
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/tensor/ops.hpp"
#include "distx/tensor/redistribute.hpp"

struct Model {};
template <std::size_t Rank, class... Ps>
using Tensor = distx::DistTensor<float, Rank, distx::Mesh<Model>, distx::Layout<Ps...>>;

auto gradient(const Tensor<2, distx::Shard<1, Model>>& x, const Tensor<2, distx::Partial<Model>>& slope) {
#ifndef DISTX_POSITIVE
  return distx::ops::gelu_backward(x, slope);
#else
  return distx::ops::gelu_backward(x, distx::redistribute<distx::Shard<1, Model>>(slope));
#endif
}
