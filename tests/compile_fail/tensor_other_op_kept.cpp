// expect: distx: redistribute: a Partial is kept while a Partial with another op is reduced
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

struct Data {};
struct Model {};
using Mesh = distx::Mesh<Data, Model>;
using distx::Layout, distx::Max, distx::Partial;

void use(const distx::DistTensor<float, 2, Mesh, Layout<Partial<Model>, Partial<Data, Max>>>& x) {
#ifndef DISTX_POSITIVE
  (void)distx::redistribute<Partial<Data, Max>>(x);
#endif
  (void)distx::redistribute<>(x);
}
