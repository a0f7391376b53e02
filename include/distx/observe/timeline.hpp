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

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::observe {

/// An interval of time on one rank, from `begin` to `end` in nanoseconds of its timeline's clock.
struct TimedSpan {
  std::string name{};
  std::int64_t begin = 0;
  std::int64_t end = 0;
  /// The timeline's track that it belongs to.
  int track = 0;
  /// It may overlap other spans of its track; spans that are not asynchronous are nested or disjoint.
  bool asynchronous = false;
  std::uint64_t bytes = 0;       ///< of the operands, 0 if there are none
  std::uint64_t wire_bytes = 0;  ///< sent and received
  std::source_location location{};
};

/// Returns the time of the steady clock in nanoseconds; processes of one host share this clock.
[[nodiscard]] inline std::int64_t steady_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Records the timed spans of one rank. Thread-safe. See Traced and write_trace.
class Timeline {
 public:
  /// Returns nanoseconds.
  using Clock = std::function<std::int64_t()>;
  /// A copy of what a timeline recorded.
  struct Contents {
    std::vector<std::string> tracks{};
    std::vector<TimedSpan> spans{};
    std::uint64_t lost = 0;  ///< spans that were dropped because an allocation failed
  };

  /// Records the time from its construction to its destruction. Borrows the timeline.
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
    /// Returns the span that will be recorded, to add what is known only later.
    [[nodiscard]] TimedSpan& span() noexcept { return span_; }

   private:
    Timeline& timeline_;
    TimedSpan span_;
  };

  /// @param clock  may be called from any thread
  explicit Timeline(Clock clock = steady_nanoseconds) : clock_(std::move(clock)) {}

  /// Returns the time of its clock.
  [[nodiscard]] std::int64_t now() const { return clock_(); }
  /// Adds a track, which is a separate row in the trace, and returns its number; the first is 0.
  int add_track(std::string name) {
    const std::lock_guard lock(mutex_);
    contents_.tracks.push_back(std::move(name));
    return static_cast<int>(contents_.tracks.size()) - 1;
  }
  /// Adds a span. If an allocation fails, counts it as lost.
  void record(TimedSpan span) noexcept {
    const std::lock_guard lock(mutex_);
    try {
      contents_.spans.push_back(std::move(span));
    } catch (const std::bad_alloc&) {
      ++contents_.lost;  // the program continues; the trace states the number
    }
  }
  /// Returns an object that records the time until it is destroyed: `auto scope = timeline.scope("backward");`
  [[nodiscard]] Scope scope(std::string name, std::source_location location = std::source_location::current()) {
    return Scope(*this, {.name = std::move(name), .location = location});
  }

  /// Returns a copy of all recorded spans; scopes that still exist are not among them.
  [[nodiscard]] Contents contents() const {
    const std::lock_guard lock(mutex_);
    return contents_;
  }
  /// Removes the spans, keeps the tracks.
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

}  // namespace distx::inline DISTX_ABI::observe
