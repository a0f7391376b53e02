// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <atomic>
#include <chrono>
#include <memory>

#include "distx/comm/runtime/progress_thread.hpp"
#include "distx/core/detail/wait.hpp"
#include "distx/mpi/detail/collectives.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// Issues the calls of a job on another thread. MPI's blocking collectives cannot be ended, but a caller can leave
/// them.
class Aside {
 public:
  explicit Aside(Job& job) : task_(std::make_shared<Task>(job)), thread_(std::make_unique<ProgressThread>()) {}

  /// Issues a call, and waits by `wait(ended, sleep)`, where `sleep` is as `wait_until`. If that throws while MPI has
  /// the call, the job and the thread are left to MPI. @pre none has been left
  template <class Wait>
  void run(const Call<Host>& call, Wait&& wait) {
    task_->reset();
    task_->call = call;
    thread_->submit(task_);
    try {
      wait([this] { return task_->done(); },
           [this](const Timeout& limit, auto&&, auto&& stopped) { return this->sleep(limit, stopped); });
    } catch (...) {
      if (sleep(Job::least_patience, [] { return false; }) != WaitEnd::ready) {
        left_ = true;
        task_->job.leave();
        (void)thread_.release();
      }
      throw;
    }
    task_->rethrow();
  }
  /// Returns whether the thread is in MPI until the process ends, and may hold a lock of MPI's. Any thread may ask.
  [[nodiscard]] bool left() const noexcept { return left_; }

 private:
  struct Task final : ProgressTask {
    explicit Task(Job& used) : job(used) {}
    void run() override { issue(job, call); }

    Job& job;
    Call<Host> call;
  };

  template <class Stopped>
  [[nodiscard]] WaitEnd sleep(const Timeout& limit, Stopped&& stopped) {
    const Deadline deadline(limit);
    while (!thread_->sleep_until(*task_, std::chrono::milliseconds(1))) {
      if (stopped()) return WaitEnd::stopped;
      if (deadline.expired()) return WaitEnd::expired;
    }
    return WaitEnd::ready;
  }

  std::shared_ptr<Task> task_;
  std::unique_ptr<ProgressThread> thread_;
  std::atomic<bool> left_{false};
};

}  // namespace distx::inline DISTX_ABI::detail::mpi
