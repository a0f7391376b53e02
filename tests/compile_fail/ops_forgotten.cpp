// expect: distx: the op is missing; pass distx::sum, or another op, after the buffers
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/comm.hpp"
#include "distx/threads.hpp"

#ifndef DISTX_POSITIVE
#define OP
#else
#define OP , distx::sum
#endif

// The compiler gives this error once for a type of communicator, and another one for a call that is not diagnosed.
void f(distx::ThreadCommunicator& comm) {
  std::vector<float> x(4);
  std::vector<float> y(4);
  std::vector<std::vector<float>> list{x, y};
  std::vector<std::vector<float>> results{x, y};
  distx::all_reduce(comm, x OP);
  distx::all_reduce(comm, list OP);
  distx::reduce(comm, x OP, 0);
  distx::reduce(comm, list OP, 0);
  distx::reduce_scatter(comm, x, y OP);
  distx::reduce_scatter(comm, list, results OP);
  auto one = distx::start_all_reduce(comm, x OP);
  auto two = distx::start_reduce(comm, x, y OP, 0);
  auto three = distx::start_reduce(comm, list, results OP, 0);
  auto four = distx::start_reduce_scatter(comm, x, y OP);
  auto five = distx::start_reduce_scatter(comm, list, results OP);
}
