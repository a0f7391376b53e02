// expect: distx: add, subtract: one operand is Partial and the other is not
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/tensor/ops.hpp"
#include "distx/tensor/redistribute.hpp"

struct Model {};
template <std::size_t Rank, class... Ps>
using Tensor = distx::DistTensor<float, Rank, distx::Mesh<Model>, distx::Layout<Ps...>>;

auto residual(const Tensor<2, distx::Partial<Model>>& x, const Tensor<2>& y) {
#ifndef DISTX_POSITIVE
  return distx::ops::add(x, y);
#else
  return distx::ops::add(distx::redistribute<>(x), y);
#endif
}
