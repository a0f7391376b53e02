// expect: distx: an asynchronous call borrows its counts; pass a std::vector<std::size_t> that lives until wait()
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/comm.hpp"
#include "distx/threads.hpp"

void f(distx::ThreadCommunicator& comm) {
  std::vector<float> x(4);
  std::vector<float> y(8);
#ifndef DISTX_POSITIVE
  auto pending = distx::start_all_gather(comm, x, y, {4, 4});
#else
  const std::vector<std::size_t> counts{4, 4};
  auto pending = distx::start_all_gather(comm, x, y, counts);
#endif
}
