// expect: distx::MeshParallel: recover supports DataParallel only; after a loss, make a mesh of the ranks that are left and a training on it, and load the last checkpoint
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/parallel/mesh_parallel.hpp"

struct Data {};

void train(distx::ThreadCommunicator& comm, distx::MeshParallel<Data>& training) {
#ifndef DISTX_POSITIVE
  static_cast<void>(training.recover(comm));
#else
  static_cast<void>(comm.rank());
  training.step({.learning_rate = 0.1});
#endif
}
