// expect: distx: an asynchronous call borrows its buffers until wait(), and this list owns them and is a temporary; give it a name that lives until then
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/comm.hpp"
#include "distx/threads.hpp"

void f(distx::ThreadCommunicator& comm) {
  std::vector<std::vector<float>> x(2, std::vector<float>(4));
#ifndef DISTX_POSITIVE
  auto pending = distx::start_all_reduce(comm, std::vector<std::vector<float>>(2), x, distx::sum);
#else
  auto pending = distx::start_all_reduce(comm, std::vector{std::span(x[0]), std::span(x[1])}, x, distx::sum);
#endif
}
