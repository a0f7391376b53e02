// expect: distx: the layout shards a dimension that the tensor does not have
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
  (void)distx::redistribute<Shard<2, Model>>(shard);
#endif
  (void)distx::redistribute<Shard<1, Model>>(shard);
}
