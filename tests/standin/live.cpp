// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "standin/cublas.hpp"
#include "standin/memory.hpp"
#include "standin/nccl_comm.hpp"
#include "standin/standin.hpp"

namespace standin {

Live live() {
  return {.device_allocations = live_device_allocations(),
          .host_allocations = live_host_allocations(),
          .streams = live_streams(),
          .events = live_events(),
          .graphs = live_graphs(),
          .communicators = live_communicators(),
          .windows = live_windows(),
          .operators = live_operators(),
          .cublas_handles = live_cublas_handles()};
}

}  // namespace standin
