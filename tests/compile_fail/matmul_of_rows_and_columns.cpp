// expect: distx: matmul: one axis shards the left operand's rows and the right one's columns
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/tensor/ops.hpp"
#include "distx/tensor/redistribute.hpp"

struct Model {};
template <std::size_t Rank, class... Ps>
using Tensor = distx::DistTensor<float, Rank, distx::Mesh<Model>, distx::Layout<Ps...>>;

auto product(const Tensor<2, distx::Shard<0, Model>>& x, const Tensor<2, distx::Shard<1, Model>>& w) {
#ifndef DISTX_POSITIVE
  return distx::ops::matmul(x, w);
#else
  return distx::ops::matmul(x, distx::redistribute<>(w));
#endif
}
