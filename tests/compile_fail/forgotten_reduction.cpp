// expect: distx: ready: the gradient is sharded over an axis over which the weight is replicated; sum it
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/parallel/mesh_parallel.hpp"

// The scale of a layer norm whose tokens are sharded over the model axis.
struct Data {};
struct Model {};
using Grid = distx::Mesh<Data, Model>;
template <class... Ps>
using Vector = distx::DistTensor<float, 1, Grid, distx::Layout<Ps...>>;

void backward(distx::MeshParallel<Data>& training, const distx::TensorParameter<float, 1, Grid>& scale,
              const Vector<distx::Shard<0, Model>>& of_my_tokens, const Vector<distx::Partial<Model>>& terms) {
#ifndef DISTX_POSITIVE
  training.ready(scale, of_my_tokens);
#else
  training.ready(scale, distx::redistribute<>(of_my_tokens));
#endif
  training.ready(scale, terms);
}
