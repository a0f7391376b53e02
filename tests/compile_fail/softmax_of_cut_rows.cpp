// expect: distx: softmax: the operand is sharded in its last dimension, and softmax needs whole rows
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/tensor/ops.hpp"
#include "distx/tensor/redistribute.hpp"

struct Model {};
template <std::size_t Rank, class... Ps>
using Tensor = distx::DistTensor<float, Rank, distx::Mesh<Model>, distx::Layout<Ps...>>;

auto attention(const Tensor<2, distx::Shard<1, Model>>& scores) {
#ifndef DISTX_POSITIVE
  return distx::ops::softmax(scores);
#else
  return distx::ops::softmax(distx::redistribute<distx::Shard<0, Model>>(scores));
#endif
}
