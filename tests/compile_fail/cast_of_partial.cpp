// expect: distx: cast: the operand is Partial and rounding is not linear; redistribute it first
// expect: distx::Partial<Model
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/tensor/ops/elementwise.hpp"
#include "distx/tensor/redistribute.hpp"

struct Model {};

auto rounded(const distx::DistTensor<float, 1, distx::Mesh<Model>, distx::Layout<distx::Partial<Model>>>& sums) {
#ifndef DISTX_POSITIVE
  return distx::ops::cast<distx::bfloat16>(sums);
#else
  return distx::ops::cast<distx::bfloat16>(distx::redistribute<>(sums));
#endif
}
