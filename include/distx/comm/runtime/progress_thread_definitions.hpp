// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/runtime/progress_thread.hpp"
#include "distx/core/detail/start_thread.hpp"

namespace distx::inline DISTX_ABI::detail {

DISTX_INLINE ProgressThread::~ProgressThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}
DISTX_INLINE void ProgressThread::submit(std::shared_ptr<ProgressTask> task) {
  {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) thread_ = start_thread([this] { run_tasks(); }, {.operation = "start"});
    tasks_.fetch_add(1, std::memory_order_relaxed);
    ProgressTask* const last = task.get();
    (last_ == nullptr ? first_ : last_->next_) = std::move(task);
    last_ = last;
  }
  wake_.notify_one();
}
DISTX_INLINE void ProgressThread::wait(const Completion& ticket) {
  waiting_.fetch_add(1, std::memory_order_relaxed);
  while (!ticket.done()) {
    if (const auto task = take())
      run(*task);
    else
      wait_for_thread(ticket);
  }
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  if (left()) wake_.notify_one();
}
DISTX_INLINE bool ProgressThread::sleep_until(const Completion& ticket, std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return over_.wait_for(lock, limit, [&] { return ticket.done(); });
}
DISTX_INLINE void ProgressThread::wait_for_thread(const Completion& ticket) {
  const auto ready = [&] { return ticket.done() || !busy_.load(std::memory_order_relaxed); };
  for (int round = 0; round < 64; ++round) {
    if (ready()) return;
    std::this_thread::yield();
  }
  std::unique_lock lock(mutex_);
  over_.wait(lock, ready);
}
DISTX_INLINE void ProgressThread::run_tasks() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stop_ || (first_ != nullptr && !busy_); });
      if (first_ == nullptr) return;
    }
    if (const auto task = take()) run(*task);
  }
}
DISTX_INLINE std::shared_ptr<ProgressTask> ProgressThread::take() {
  const std::lock_guard lock(mutex_);
  if (busy_ || first_ == nullptr) return nullptr;
  busy_ = true;
  auto task = std::exchange(first_, nullptr);
  first_ = std::move(task->next_);
  if (first_ == nullptr) last_ = nullptr;
  return task;
}
DISTX_INLINE std::exception_ptr ProgressThread::error_of(ProgressTask& task) noexcept {
  try {
    task.run();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}
DISTX_INLINE void ProgressThread::run(ProgressTask& task) noexcept {
  auto error = error_of(task);
  tasks_.fetch_sub(1, std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    busy_ = false;
    task.finish(std::move(error));
  }
  over_.notify_all();
}
DISTX_INLINE bool ProgressThread::left() {
  const std::lock_guard lock(mutex_);
  return first_ != nullptr;
}

}  // namespace distx::inline DISTX_ABI::detail
