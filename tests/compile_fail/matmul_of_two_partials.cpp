// expect: distx: matmul: both operands are Partial over one axis
// expect: redistribute one of them to Replicated there
// expect: Case<distx::rules::Matmul, distx::rules::Dimensions<2, 2>, distx::Partial<Model
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/tensor/ops/matmul.hpp"
#include "distx/tensor/redistribute.hpp"

struct Model {};
using Terms = distx::DistTensor<float, 2, distx::Mesh<Model>, distx::Layout<distx::Partial<Model>>>;

auto product(const Terms& a, const Terms& b) {
#ifndef DISTX_POSITIVE
  return distx::ops::matmul(a, b);
#else
  return distx::ops::matmul(a, distx::redistribute<>(b));
#endif
}
