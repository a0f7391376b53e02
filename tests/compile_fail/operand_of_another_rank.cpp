// expect: distx: an operand has the wrong number of dimensions for this operation
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/tensor/ops/matmul.hpp"

struct Model {};
template <std::size_t Rank>
using Tensor = distx::DistTensor<float, Rank, distx::Mesh<Model>, distx::Layout<>>;

#ifndef DISTX_POSITIVE
auto product(const Tensor<2>& x, const Tensor<3>& w) { return distx::ops::matmul(x, w); }
#else
auto product(const Tensor<3>& x, const Tensor<2>& w) { return distx::ops::matmul(x, w); }
#endif
