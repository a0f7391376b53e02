// expect: distx: an operand has the wrong number of dimensions
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/tensor/ops.hpp"

struct Model {};
using distx::Shard;

void use(const distx::DistTensor<float, 2, distx::Mesh<Model>, distx::Layout<Shard<1, Model>>>& x) {
#ifdef DISTX_POSITIVE
  static_cast<void>(distx::ops::sum_over<1>(x));
#else
  static_cast<void>(distx::ops::sum_over<2>(x));
#endif
}
