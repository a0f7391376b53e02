// expect: distx::MeshParallel: recover needs copies of the state; add the policy Replicate
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/parallel/mesh_parallel.hpp"

struct Data {};

#ifndef DISTX_POSITIVE
void train(distx::MeshParallel<Data>::replicas& copies, distx::MeshParallel<Data>& training) {
#else
void train(distx::MeshParallel<Data>::replicas& copies, distx::MeshParallel<Data, distx::Replicate>& training) {
#endif
  static_cast<void>(training.recover(copies));
}
