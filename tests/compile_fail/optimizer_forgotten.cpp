// expect: distx::DataParallel: the optimizer is missing; pass distx::AdamW{}, or another one, after the parameters
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/comm.hpp"
#include "distx/threads.hpp"
#include "distx/training.hpp"

void f(distx::ThreadCommunicator& comm) {
  std::vector<float> x(4);
  std::vector<float> g(4);
  std::vector parameters{distx::ref("x", x, g)};
#ifndef DISTX_POSITIVE
  distx::DataParallel<distx::ZeRO<0>> training(comm, parameters);
#else
  distx::DataParallel<distx::ZeRO<0>> training(comm, parameters, distx::AdamW{});
#endif
}
