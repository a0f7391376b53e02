// expect: distx::MeshParallel: optimizers of whole weights (LAMB, Muon, Mixed) do not support distributed weights; use an ElementwiseOptimizer, such as AdamW or SGD
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/optim/adamw.hpp"
#include "distx/optim/lamb.hpp"
#include "distx/parallel/mesh_parallel.hpp"

struct Data {};
struct Model {};
using Grid = distx::Mesh<Data, Model>;

void train(const Grid& mesh, const distx::TensorParameterList<distx::Host>& parameters) {
#ifndef DISTX_POSITIVE
  distx::MeshParallel<Data> training(mesh, parameters, distx::LAMB{});
#else
  distx::MeshParallel<Data> training(mesh, parameters, distx::AdamW{});
#endif
}
