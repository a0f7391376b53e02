// expect: distx: ready: the gradient is missing; pass ready(weight, gradient)
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/parallel/mesh_parallel.hpp"

struct Data {};
struct Model {};
using Grid = distx::Mesh<Data, Model>;
using Scale = distx::TensorParameter<float, 1, Grid>;
using Gradient = distx::DistTensor<float, 1, Grid, distx::Layout<distx::Partial<Data>, distx::Partial<Model>>>;

void backward(distx::MeshParallel<Data>& training, const Scale& scale, const Gradient& gradient) {
#ifndef DISTX_POSITIVE
  training.ready(scale);
  (void)gradient;
#else
  training.ready(scale, gradient);
#endif
}
