// expect: distx: the tensor does not have the dimension to reduce
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/tensor/ops.hpp"

struct Model {};

void use(const distx::DistTensor<float, 2, distx::Mesh<Model>, distx::Layout<>>& x) {
#ifdef DISTX_POSITIVE
  static_cast<void>(distx::ops::sum_over<1>(x));
#else
  static_cast<void>(distx::ops::sum_over<2>(x));
#endif
}
