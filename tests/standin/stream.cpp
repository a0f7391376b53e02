// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "standin/stream.hpp"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "standin/guard.hpp"
#include "standin/standin.hpp"

namespace standin {

namespace {

std::atomic<int>& delay_us() {
  static auto* us = [] {
    const char* text = std::getenv("DISTX_STANDIN_DELAY_US");
    return new std::atomic<int>(text == nullptr ? -1 : std::atoi(text));
  }();
  return *us;
}

}  // namespace

void delay(int microseconds) { delay_us() = microseconds; }

bool Point::reached() const { return stream == nullptr || stream->reached(position); }

void Point::wait() const {
  if (stream != nullptr) stream->wait(position);
}

Point Stream::enqueue(Work work, std::vector<Point> after) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back({std::move(work), std::move(after)});
  if (!std::exchange(runs_, true)) std::thread([self = shared_from_this()] { self->run(); }).detach();
  changed_.notify_all();
  return {shared_from_this(), ++enqueued_};
}

Point Stream::now() {
  const std::lock_guard lock(mutex_);
  return {shared_from_this(), enqueued_};
}

bool Stream::reached(std::uint64_t position) {
  const std::lock_guard lock(mutex_);
  return done_ >= position;
}

void Stream::wait(std::uint64_t position) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= position; });
}

void Stream::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

bool Stream::drained() {
  const std::lock_guard lock(mutex_);
  return closed_ && done_ == enqueued_;
}

void Stream::let_drain() {
  std::unique_lock lock(mutex_);
  if (closed_) changed_.wait_for(lock, std::chrono::seconds(1), [&] { return done_ == enqueued_; });
}

void Stream::run() {
  const Unguarded open;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closed_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    {
      const Task task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      for (const Point& point : task.after) point.wait();
      pause();
      task.work();
    }
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

// Work that another stream should wait for is delayed, so that a missing wait shows.
void Stream::pause() {
  const int us = delay_us();
  if (us >= 0) {
    if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
    return;
  }
  noise_ = noise_ * 1664525U + 1013904223U;
  const std::uint32_t number = noise_ >> 24;
  if (number < 32)
    std::this_thread::sleep_for(std::chrono::microseconds(5 * number));
  else if (number < 128)
    std::this_thread::yield();
}

}  // namespace standin
