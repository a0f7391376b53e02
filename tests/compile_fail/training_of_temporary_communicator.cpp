// expect: distx::DataParallel: the communicator is a temporary; give it a name first
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/comm.hpp"
#include "distx/threads.hpp"
#include "distx/training.hpp"

void f(distx::ThreadCommunicator& comm) {
  std::vector<float> x(4);
  std::vector<float> g(4);
  std::vector parameters{distx::ref("x", x, g)};
#ifndef DISTX_POSITIVE
  distx::DataParallel<distx::ZeRO<0>> training(comm.share(), parameters, distx::AdamW{});
#else
  auto other = comm.share();
  distx::DataParallel<distx::ZeRO<0>> training(other, parameters, distx::AdamW{});
#endif
}
