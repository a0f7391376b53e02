// expect: distx::MeshParallel: the third argument is not an optimizer; pass an ElementwiseOptimizer, such as distx::AdamW{}
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/optim/adamw.hpp"
#include "distx/parallel/mesh_parallel.hpp"

struct Data {};
struct Model {};
using Grid = distx::Mesh<Data, Model>;

void train(const Grid& mesh, const distx::TensorParameterList<distx::Host>& parameters) {
#ifndef DISTX_POSITIVE
  distx::MeshParallel<Data> training(mesh, parameters, 3.0);
#else
  distx::MeshParallel<Data> training(mesh, parameters, distx::AdamW{});
#endif
}
