// expect: distx: add, subtract: one operand is Partial and the other is not
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/parallel/mesh_parallel.hpp"
#include "distx/tensor.hpp"
#include "distx/tensor/ops.hpp"

struct Data {};
struct Model {};
using Mesh = distx::Mesh<Data, Model>;
template <std::size_t Rank, class... Ps>
using Tensor = distx::DistTensor<float, Rank, Mesh, distx::Layout<Ps...>>;
template <class... Ps>
using Weight = distx::TensorParameter<float, 2, Mesh, distx::Layout<Ps...>>;
using Rows = distx::Shard<0, Data>;

// Everything that uses the result of the call with the mistake is accepted.
void step(distx::MeshParallel<Data, distx::ZeRO<0>>& training, const Tensor<2, Rows>& x, const Tensor<2, Rows>& target,
          const Tensor<1, Rows>& ids, const Tensor<1>& bias, const Weight<distx::Shard<1, Model>>& first,
          const Weight<distx::Shard<0, Model>>& second) {
  const auto hidden = distx::ops::relu(distx::ops::matmul(x, first));
  const auto y = distx::ops::matmul(hidden, second);  // Partial over Model
#ifndef DISTX_POSITIVE
  const auto difference = distx::ops::subtract(y, target);
#else
  const auto difference = distx::ops::subtract(distx::all_reduce<Model>(y), target);
#endif
  training.ready(second, distx::ops::matmul(distx::ops::transposed(hidden), difference));
  const auto slope = distx::ops::relu_backward(hidden, distx::ops::matmul(difference, distx::ops::transposed(second)));
  training.ready(first, distx::ops::matmul(distx::ops::transposed(x), slope));
  (void)distx::ops::add_bias(distx::ops::scale(difference, 2), bias);
  (void)distx::ops::zip(distx::ops::softmax(difference), difference, [](float a, float) { return a; });
  (void)distx::ops::sum_over<1>(distx::ops::transpose(distx::ops::multiply(difference, difference)));
  (void)distx::ops::contract<1>(distx::ops::transpose(difference), target);
  (void)distx::redistribute<>(difference);
  (void)distx::all_gather<Data>(difference);
  (void)distx::gather(difference, 0);
  (void)ids;
  (void)difference.view()(0, 0);
}
