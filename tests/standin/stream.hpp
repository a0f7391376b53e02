// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace standin {

class Stream;

/// A point of a stream, reached when all work enqueued before it is complete.
struct Point {
  std::shared_ptr<Stream> stream;
  std::uint64_t position = 0;

  [[nodiscard]] bool reached() const;
  void wait() const;
};

using Work = std::function<void()>;

/// Runs work in the order in which it was enqueued, on a separate thread.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  enum class Kind { legacy, blocking, free };

  Stream(int of_device, Kind of_kind, unsigned number, int of_priority = 0)
      : device(of_device), kind(of_kind), priority(of_priority), noise_(number * 2654435761U + 1) {}

  /// The work starts once the other streams have come to the points.
  Point enqueue(Work work, std::vector<Point> after);
  /// The point that is reached once all that is enqueued now is done.
  [[nodiscard]] Point now();
  [[nodiscard]] bool reached(std::uint64_t position);
  void wait(std::uint64_t position);
  /// Rejects further work; enqueued work completes.
  void close();
  [[nodiscard]] bool drained();
  /// Waits a second at most for a closed stream to come to its end.
  void let_drain();

  const int device;
  const Kind kind;
  const int priority;

 private:
  struct Task {
    Work work;
    std::vector<Point> after;
  };

  void run();
  void pause();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::uint64_t enqueued_ = 0;
  std::uint64_t done_ = 0;
  bool runs_ = false;
  bool closed_ = false;
  std::uint32_t noise_;
};

}  // namespace standin
