// expect: distx: the operands of this operation are on meshes of different types
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/tensor/ops.hpp"

struct Data {};
struct Model {};

void use(const distx::DistTensor<float, 2, distx::Mesh<Model>, distx::Layout<>>& x,
#ifdef DISTX_POSITIVE
         const distx::DistTensor<float, 2, distx::Mesh<Model>, distx::Layout<>>& y) {
#else
         const distx::DistTensor<float, 2, distx::Mesh<Data>, distx::Layout<>>& y) {
#endif
  static_cast<void>(distx::ops::add(distx::ops::add(x, y), x));
}
