// expect: distx: a Partial tensor has terms instead of values; pass this rank's terms to from_local
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

struct Data {};
struct Model {};
using Mesh = distx::Mesh<Data, Model>;
using distx::Layout, distx::Partial, distx::Shard;

void use(const Mesh& mesh, const distx::DistTensor<float, 2, Mesh, Layout<Partial<Model>>>& partial,
         const distx::DistTensor<float, 2, Mesh, Layout<Shard<0, Model>>>& shard) {
  (void)mesh, (void)partial, (void)shard;
#ifndef DISTX_POSITIVE
  (void)distx::ones<float, Partial<Model>>(mesh, {4, 4});
#endif
  (void)distx::ones<float, Shard<1, Model>>(mesh, {4, 4});
}
