// expect: distx: relu: the operand is Partial and relu is not linear; redistribute it first
// expect: distx::Partial<Model
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/tensor/ops/activations.hpp"
#include "distx/tensor/ops/matmul.hpp"
#include "distx/tensor/redistribute.hpp"

struct Data {};
struct Model {};
template <class... Ps>
using Matrix = distx::DistTensor<float, 2, distx::Mesh<Data, Model>, distx::Layout<Ps...>>;

auto layer(const Matrix<distx::Shard<1, Model>, distx::Shard<0, Data>>& x, const Matrix<distx::Shard<0, Model>>& w) {
  auto y = distx::ops::matmul(x, w);
#ifndef DISTX_POSITIVE
  auto z = distx::ops::relu(y);
#else
  auto z = distx::ops::relu(distx::redistribute<distx::Shard<0, Data>>(y));
#endif
  return distx::ops::matmul(z, distx::redistribute<>(w));
}
