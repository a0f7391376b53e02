// expect: distx::MeshParallel: optimizers of whole weights (LAMB, Muon, Mixed) support host memory only; use an ElementwiseOptimizer, such as AdamW or SGD, on a GPU
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/optim/muon.hpp"
#include "distx/parallel/mesh_parallel.hpp"

struct Data {};
struct Model {};
using Grid = distx::Mesh<Data, Model>;

/// Stands for a GPU's memory.
struct Elsewhere {
  using stream = distx::HostStream;
  using event = distx::HostEvent;
  static constexpr std::string_view name = "elsewhere";
  static constexpr bool host_accessible = false;
};

void train(const Grid& mesh, const distx::TensorParameterList<Elsewhere>& parameters) {
#ifndef DISTX_POSITIVE
  distx::MeshParallel<Data, distx::On<Elsewhere>> training(mesh, parameters, distx::Muon{});
#else
  static_cast<void>(mesh.rank());
  static_cast<void>(parameters);
#endif
}
