// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "distx/cuda/event.hpp"
#include "distx/nccl/detail/channel.hpp"

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
  Deadline deadline{no_timeout};
  HostReduction reduction;

  [[nodiscard]] bool done() const { return enqueued && event.done(); }
};

/// Hands a job over at the end of the scope.
struct Returning {
  Returning(Job& j, Job::Holder h) noexcept : job(j), holder(h) {}
  Returning(const Returning&) = delete;
  Returning& operator=(const Returning&) = delete;
  ~Returning() { job.holder = holder; }
  Job& job;
  Job::Holder holder;
};

/// The jobs of a communicator. A reference to one stays good.
class Jobs {
 public:
  /// One that nobody waits for and the GPU has done.
  /// @throws what a user's op has thrown in a call that was followed by a stream
  [[nodiscard]] Job& idle() {
    for (const auto& job : jobs_) {
      if (job->holder == Job::Holder::pending) continue;
      if (job->holder == Job::Holder::stream) {
        if (!job->done()) continue;
        job->reduction.rethrow();
      }
      job->enqueued = false;
      return *job;
    }
    jobs_.push_back(std::make_unique<Job>());
    return *jobs_.back();
  }
  /// Whether the GPU has done all that were enqueued.
  [[nodiscard]] bool done() const {
    return std::ranges::all_of(jobs_, [](const auto& job) { return !job->enqueued || job->event.done(); });
  }
  [[nodiscard]] auto begin() const noexcept { return jobs_.begin(); }
  [[nodiscard]] auto end() const noexcept { return jobs_.end(); }

 private:
  std::vector<std::unique_ptr<Job>> jobs_;
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
