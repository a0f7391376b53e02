// expect: distx: the span is in a memory space that this communicator does not move
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

struct Gpu {
  using stream = distx::HostStream;
  using event = distx::HostEvent;
  static constexpr std::string_view name = "gpu";
  static constexpr bool host_accessible = false;
};

void train(distx::ThreadCommunicator& comm, distx::Span<float, Gpu> on_gpu, distx::Span<float> on_host) {
#ifndef DISTX_POSITIVE
  distx::all_reduce(comm, on_gpu, distx::sum);
#endif
  distx::all_reduce(comm, on_host, distx::sum);
}
