// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/cuda/event.hpp"
#include "distx/nccl/channel.hpp"

namespace distx::nccl {

/// A started call; kept for the next one when it is done.
struct Job {
  enum class Holder {
    nobody,
    pending,  ///< whoever has started it
    stream,   ///< a stream waits for it, and nobody else
  };

  CudaEvent event;  ///< first of what comes before the call, then of its end
  Channel* channel = nullptr;
  bool enqueued = false;  ///< the event is of its end
  std::atomic<Holder> holder{Holder::nobody};
  Deadline deadline{none};
  HostReduction reduction;

  [[nodiscard]] bool done() const { return enqueued && event.done(); }
};

/// A message that waits to be enqueued together with others.
struct Message {
  Job* job = nullptr;
  bool sends = false;
  const std::byte* source = nullptr;  ///< of one that is sent
  std::byte* target = nullptr;        ///< of one that is received
  std::size_t bytes = 0;
  int peer = 0;
};

}  // namespace distx::nccl
