// expect: distx: the communicator is a temporary; give it a name first
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/comm.hpp"
#include "distx/threads.hpp"

// The compiler gives this error once for a type of communicator, and another one for a call that is not diagnosed.
void f(distx::ThreadCommunicator& comm) {
  std::vector<float> x(4);
  std::vector<float> y(4);
  std::vector<std::vector<float>> list{x, y};
#ifndef DISTX_POSITIVE
  const auto here = [&] { return comm.share(); };
#else
  const auto here = [&]() -> distx::ThreadCommunicator& { return comm; };
#endif
  distx::all_reduce(here(), x, y, distx::sum);
  distx::reduce(here(), x, distx::sum, 0);
  distx::reduce_scatter(here(), x, y, distx::sum);
  distx::broadcast(here(), x, 0);
  distx::all_gather(here(), x, y);
  distx::all_to_all(here(), x, y);
  distx::gather(here(), x, y, 0);
  distx::scatter(here(), x, y, 0);
  distx::send(here(), x, 0);
  distx::receive(here(), x, 0);
  distx::send_receive(here(), x, 0, y, 0);
  distx::barrier(here());
  distx::all_reduce(here(), list, distx::sum);
  auto group = distx::groups(here(), {{0, 1}});
  distx::barrier(group);

  (void)distx::start_all_reduce(here(), x, distx::sum);
  (void)distx::start_reduce(here(), x, y, distx::sum, 0);
  (void)distx::start_reduce_scatter(here(), x, y, distx::sum);
  (void)distx::start_broadcast(here(), x, 0);
  (void)distx::start_all_gather(here(), x, y);
  (void)distx::start_all_to_all(here(), x, y);
  (void)distx::start_gather(here(), x, y, 0);
  (void)distx::start_scatter(here(), x, y, 0);
  (void)distx::start_send(here(), x, 0);
  (void)distx::start_receive(here(), x, 0);
  (void)distx::start_send_receive(here(), x, 0, y, 0);
  (void)distx::start_barrier(here());
}
