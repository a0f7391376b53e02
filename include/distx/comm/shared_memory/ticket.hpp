// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace distx::shared_memory {

/// Something that will be done: by the progress thread, or by the rank that comes second to a message.
class Ticket {
 public:
  virtual ~Ticket() = default;
  [[nodiscard]] bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  void finish(std::exception_ptr error = nullptr) noexcept {
    error_ = std::move(error);
    done_.store(true, std::memory_order_release);
  }
  /// Once: the error is the caller's then, and whoever else has the ticket may drop it on another thread meanwhile.
  /// @pre done()
  void rethrow() {
    if (auto error = std::exchange(error_, nullptr); error != nullptr) std::rethrow_exception(std::move(error));
  }

 private:
  std::exception_ptr error_;
  std::atomic<bool> done_{false};
};

/// A ticket with work that the progress thread is to do.
class Task : public Ticket {
 public:
  virtual void run() = 0;

 private:
  friend class ProgressThread;
  std::shared_ptr<Task> next_;
};

/// Runs tasks one after another on a thread of its own: started by the first, parked when idle, joined at the end.
///
/// Whoever waits for a task runs what has not begun: where there are no more cores than ranks, the thread may not have
/// had its turn while the rank computed, and to change threads would only take time.
class ProgressThread {
 public:
  ProgressThread() = default;
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;
  ~ProgressThread() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  void submit(std::shared_ptr<Task> task) {
    {
      const std::lock_guard lock(mutex_);
      if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
      Task* const last = task.get();
      (last_ == nullptr ? first_ : last_->next_) = std::move(task);
      last_ = last;
    }
    wake_.notify_one();
  }

  /// Returns when this one of its tasks is done.
  void wait(const Ticket& ticket) {
    while (!ticket.done()) {
      if (const auto task = take())
        run(*task);
      else
        wait_for_thread(ticket);
    }
    if (left()) wake_.notify_one();
  }

 private:
  /// Briefly awake, then asleep: the thread may be on a core with others, and comes to this one when that is free.
  /// Without a limit of its own: the task's waits have one.
  void wait_for_thread(const Ticket& ticket) {
    const auto ready = [&] { return ticket.done() || !busy_.load(std::memory_order_relaxed); };
    for (int round = 0; round < 64; ++round) {
      if (ready()) return;
      std::this_thread::yield();
    }
    std::unique_lock lock(mutex_);
    over_.wait(lock, ready);
  }
  void work() {
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return stop_ || (first_ != nullptr && !busy_); });
        if (first_ == nullptr) return;
      }
      if (const auto task = take()) run(*task);
    }
  }
  /// The next task, for the caller to run; null where there is none, and while another one is run.
  [[nodiscard]] std::shared_ptr<Task> take() {
    const std::lock_guard lock(mutex_);
    if (busy_ || first_ == nullptr) return nullptr;
    busy_ = true;
    auto task = std::exchange(first_, nullptr);
    first_ = std::move(task->next_);
    if (first_ == nullptr) last_ = nullptr;
    return task;
  }
  void run(Task& task) noexcept {
    std::exception_ptr error;
    try {
      task.run();
    } catch (...) {
      error = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      busy_ = false;
      task.finish(std::move(error));
    }
    over_.notify_all();
  }
  [[nodiscard]] bool left() {
    const std::lock_guard lock(mutex_);
    return first_ != nullptr;
  }

  std::mutex mutex_;
  std::atomic<bool> busy_{false};  // a task is run; changed under the mutex
  std::condition_variable wake_;   // there is something to run
  std::condition_variable over_;   // something was run
  std::shared_ptr<Task> first_;
  Task* last_ = nullptr;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace distx::shared_memory
