// expect: distx: gather: the tensor is Partial; redistribute it first
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
  (void)distx::gather(partial, 0);
#endif
  (void)distx::gather(shard, 0);
}
