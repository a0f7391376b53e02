// expect: distx::MeshParallel: the optimizer is missing; pass distx::AdamW{}, or another one, after the parameters
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/optim/adamw.hpp"
#include "distx/parallel/mesh_parallel.hpp"

struct Data {};
struct Model {};
using Grid = distx::Mesh<Data, Model>;

void train(const Grid& mesh, const distx::TensorParameterList<distx::Host>& parameters) {
#ifndef DISTX_POSITIVE
  distx::MeshParallel<Data> training(mesh, parameters);
#else
  distx::MeshParallel<Data> training(mesh, parameters, distx::AdamW{});
#endif
}
