// expect: distx: ready: the gradient is Partial over an axis that shards the weight; redistribute it
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/parallel/mesh_parallel.hpp"

struct Data {};
struct Model {};
using Grid = distx::Mesh<Data, Model>;
using Shards = distx::Layout<distx::Shard<1, Model>>;

void backward(distx::MeshParallel<Data>& training, const distx::TensorParameter<float, 2, Grid, Shards>& weight,
              const distx::DistTensor<float, 2, Grid, distx::Layout<distx::Partial<Model>>>& gradient) {
#ifndef DISTX_POSITIVE
  training.ready(weight, gradient);
#else
  training.ready(weight, distx::redistribute<distx::Shard<1, Model>>(gradient));
#endif
}
