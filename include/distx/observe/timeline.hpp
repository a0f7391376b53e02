// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <new>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

namespace distx {

/// Something that took time: from `begin` to `end` in the nanoseconds of its timeline's clock.
struct TimedSpan {
  std::string name{};
  std::int64_t begin = 0;
  std::int64_t end = 0;
  /// Which of the timeline's tracks it belongs to.
  int track = 0;
  /// It went on beside others; one that did not lies within or outside every other of its track.
  bool asynchronous = false;
  std::uint64_t bytes = 0;       ///< of the operands, where there are any
  std::uint64_t wire_bytes = 0;  ///< sent and received
  std::source_location location{};
};

/// The nanoseconds of the steady clock, which the processes of one machine share.
[[nodiscard]] inline std::int64_t steady_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// One rank's record of what took time. Any thread may add to it.
class Timeline {
 public:
  using Clock = std::function<std::int64_t()>;
  struct Contents {
    std::vector<std::string> tracks{};
    std::vector<TimedSpan> spans{};
    std::uint64_t lost = 0;  ///< spans for which there was no memory
  };

  /// Measures from its construction to its end and records that; for a block of code.
  class Scope {
   public:
    Scope(Timeline& timeline, TimedSpan span) : timeline_(timeline), span_(std::move(span)) {
      span_.begin = timeline_.now();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() {
      span_.end = timeline_.now();
      timeline_.record(std::move(span_));
    }
    /// For what is known only later.
    [[nodiscard]] TimedSpan& span() noexcept { return span_; }

   private:
    Timeline& timeline_;
    TimedSpan span_;
  };

  explicit Timeline(Clock clock = steady_nanoseconds) : clock_(std::move(clock)) {}

  [[nodiscard]] std::int64_t now() const { return clock_(); }
  /// A row of its own in the picture, for what goes on beside other things; track 0 is the first.
  int add_track(std::string name) {
    const std::lock_guard lock(mutex_);
    contents_.tracks.push_back(std::move(name));
    return static_cast<int>(contents_.tracks.size()) - 1;
  }
  void record(TimedSpan span) noexcept {
    const std::lock_guard lock(mutex_);
    try {
      contents_.spans.push_back(std::move(span));
    } catch (const std::bad_alloc&) {
      ++contents_.lost;  // what is observed goes on; the trace says how much it lacks
    }
  }
  /// `auto scope = timeline.scope("backward");`
  [[nodiscard]] Scope scope(std::string name, std::source_location location = std::source_location::current()) {
    return Scope(*this, {.name = std::move(name), .location = location});
  }

  /// A copy of all that has ended; what is under way is not in it yet.
  [[nodiscard]] Contents contents() const {
    const std::lock_guard lock(mutex_);
    return contents_;
  }
  /// Forgets the spans, keeps the tracks.
  void clear() {
    const std::lock_guard lock(mutex_);
    contents_.spans.clear();
    contents_.lost = 0;
  }

 private:
  Clock clock_;
  mutable std::mutex mutex_;
  Contents contents_;
};

}  // namespace distx
