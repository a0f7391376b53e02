// expect: distx: max_over: the operand is Partial, and the maximum of sums is not that of their terms
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/tensor/ops.hpp"
#include "distx/tensor/redistribute.hpp"

struct Model {};
template <std::size_t Rank, class... Ps>
using Tensor = distx::DistTensor<float, Rank, distx::Mesh<Model>, distx::Layout<Ps...>>;

auto greatest(const Tensor<2, distx::Partial<Model>>& x) {
#ifndef DISTX_POSITIVE
  return distx::ops::max_over<1>(x);
#else
  return distx::ops::max_over<1>(distx::redistribute<>(x));
#endif
}
