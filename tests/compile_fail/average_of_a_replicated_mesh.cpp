// expect: distx: ema: an average is not copied by Replicate; remove one of them
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/parallel/mesh_parallel.hpp"

struct Data {};

#ifndef DISTX_POSITIVE
void train(distx::MeshParallel<Data, distx::Replicate>& training) {
#else
void train(distx::MeshParallel<Data>& training) {
#endif
  static_cast<void>(training.ema(0.99));
}
