// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

/// An event that another thread or another rank completes.
class Completion {
 public:
  virtual ~Completion() = default;
  [[nodiscard]] bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  void finish(std::exception_ptr error = nullptr) noexcept {
    error_ = std::move(error);
    done_.store(true, std::memory_order_seq_cst);  // before a bell is rung
  }
  /// Completes it without an error, if no other thread may sleep until then.
  void finish_here() noexcept { done_.store(true, std::memory_order_release); }
  /// Throws the error, if any, and transfers its ownership to the caller, because another owner of this object may
  /// destroy it on another thread. @pre done()
  void rethrow() {
    if (auto error = std::exchange(error_, nullptr); error != nullptr) std::rethrow_exception(std::move(error));
  }

  /// Resets the object for reuse. @pre done(), and no other thread uses it
  void reset() noexcept {
    error_ = nullptr;
    done_.store(false, std::memory_order_relaxed);
  }

 private:
  std::exception_ptr error_;
  std::atomic<bool> done_{false};
};

/// A task for the progress thread.
class ProgressTask : public Completion {
 public:
  virtual void run() = 0;

 private:
  friend class ProgressThread;
  std::shared_ptr<ProgressTask> next_;
};

/// Runs tasks in order on one thread, which starts with the first task, sleeps when idle, and is joined by the
/// destructor.
///
/// A thread that waits for a task runs the tasks that have not begun: if there are no more cores than ranks, the
/// progress thread may not have been scheduled yet, and a thread switch would only cost time.
class ProgressThread {
 public:
  ~ProgressThread();

  void submit(std::shared_ptr<ProgressTask> task);

  /// Runs a task immediately on the caller's thread.
  static void run_here(ProgressTask& task) noexcept { task.finish(error_of(task)); }

  /// Returns whether tasks of any progress thread of this process are queued or running.
  [[nodiscard]] static bool any_task() noexcept { return tasks_.load(std::memory_order_relaxed) != 0; }
  /// Returns whether a thread waits for a task.
  [[nodiscard]] bool awaited() const noexcept { return waiting_.load(std::memory_order_relaxed) != 0; }

  /// Blocks until that task is done.
  void wait(const Completion& ticket);
  /// Sleeps until the thread has run that task, but at most for the limit; returns whether it has.
  [[nodiscard]] bool sleep_until(const Completion& ticket, std::chrono::milliseconds limit);

 private:
  /// Spins briefly, then sleeps, because the progress thread may need this core. It needs no deadline: the waits inside
  /// the task have one.
  void wait_for_thread(const Completion& ticket);
  void run_tasks();
  /// Returns the next task for the caller to run, or null if there is none or another task is running.
  [[nodiscard]] std::shared_ptr<ProgressTask> take();
  void run(ProgressTask& task) noexcept;
  /// Runs a task; returns what it throws, or null.
  [[nodiscard]] static std::exception_ptr error_of(ProgressTask& task) noexcept;
  [[nodiscard]] bool left();

  inline static std::atomic<int> tasks_{0};  // of all progress threads, queued or running

  std::mutex mutex_;
  std::atomic<int> waiting_{0};    // threads in `wait`
  std::atomic<bool> busy_{false};  // a task is running; changed under the mutex
  std::condition_variable wake_;   // a task is queued
  std::condition_variable over_;   // a task has finished
  std::shared_ptr<ProgressTask> first_;
  ProgressTask* last_ = nullptr;
  bool stop_ = false;
  std::jthread thread_;
};

}  // namespace distx::inline DISTX_ABI::detail
