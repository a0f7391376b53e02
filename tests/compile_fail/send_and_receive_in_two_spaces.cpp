// expect: distx: send and receive are in different memory spaces
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
  distx::all_gather(comm, on_host, on_gpu);
#endif
  distx::all_gather(comm, on_host, on_host);
}
