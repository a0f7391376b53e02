// expect: distx: ring_attention: several axes shard the length; redistribute it over one of them
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/tensor/ops/ring_attention.hpp"
#include "distx/tensor/redistribute.hpp"

struct Context {};
struct Model {};
template <class... Ps>
using Tensor = distx::DistTensor<float, 5, distx::Mesh<Context, Model>, distx::Layout<Ps...>>;

auto attention(const Tensor<distx::Shard<1, Context>, distx::Shard<1, Model>>& x) {
#ifndef DISTX_POSITIVE
  return distx::ops::ring_attention(x);
#else
  return distx::ops::ring_attention(distx::redistribute<distx::Shard<1, Context>, distx::Shard<3, Model>>(x));
#endif
}
