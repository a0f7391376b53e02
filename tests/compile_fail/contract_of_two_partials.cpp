// expect: distx: contract: both operands are Partial over one axis
// expect: redistribute one of them to Replicated there
// expect: Case<distx::rules::Contract<1>, distx::rules::Dimensions<2, 2>, distx::Partial<Model
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/tensor/ops/contract.hpp"
#include "distx/tensor/redistribute.hpp"

struct Model {};
using Terms = distx::DistTensor<float, 2, distx::Mesh<Model>, distx::Layout<distx::Partial<Model>>>;

auto product(const Terms& a, const Terms& b) {
#ifndef DISTX_POSITIVE
  return distx::ops::contract<1>(a, b);
#else
  return distx::ops::contract<1>(a, distx::redistribute<>(b));
#endif
}
