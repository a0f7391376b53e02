// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <chrono>
#include <string>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// The type of `no_timeout`.
struct NoTimeout {};

}  // namespace detail

/// Asks for a wait without a limit: `{.deadline = no_timeout}`.
inline constexpr detail::NoTimeout no_timeout{};

/// How long a wait may last: a std::chrono duration, or `no_timeout`. Converts from both.
class Timeout {
 public:
  using duration = std::chrono::nanoseconds;
  /// The longest limit, a hundred years; a longer duration does not fit the clock and means `no_timeout`.
  static constexpr std::chrono::duration<double> longest{3.2e9};

  constexpr Timeout(detail::NoTimeout) noexcept : limit_(duration::max()) {}  // NOLINT
  template <class Rep, class Period>
  constexpr Timeout(std::chrono::duration<Rep, Period> limit) noexcept  // NOLINT
      : limit_(std::chrono::duration<double>(limit) < longest ? std::chrono::duration_cast<duration>(limit)
                                                              : duration::max()) {}

  /// Returns whether the wait has no limit.
  [[nodiscard]] constexpr bool unlimited() const noexcept { return limit_ == duration::max(); }
  /// Returns the limit; the largest duration if there is none.
  [[nodiscard]] constexpr duration limit() const noexcept { return limit_; }
  /// Returns the limit in seconds, as messages state it: "1.5 s", or "no deadline".
  [[nodiscard]] std::string to_string() const {
    if (unlimited()) return "no deadline";
    std::string text = std::to_string(std::chrono::duration<double>(limit_).count());
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
    return text + " s";
  }

 private:
  duration limit_;
};

/// The default limit of blocking waits, ten minutes; a wait that reaches it throws a TimeoutError.
inline constexpr Timeout default_deadline = std::chrono::minutes(10);

/// The point in time at which a Timeout that starts now expires.
class Deadline {
 public:
  using clock = std::chrono::steady_clock;

  explicit Deadline(Timeout timeout, clock::time_point now = clock::now()) noexcept
      : end_(timeout.unlimited() ? clock::time_point::max() : now + timeout.limit()) {}

  /// Returns whether it never expires.
  [[nodiscard]] bool unlimited() const noexcept { return end_ == clock::time_point::max(); }
  /// Returns whether it is over.
  [[nodiscard]] bool expired() const noexcept { return !unlimited() && clock::now() >= end_; }
  /// Returns when it expires; the largest time point if never.
  [[nodiscard]] clock::time_point end() const noexcept { return end_; }

 private:
  clock::time_point end_;
};

}  // namespace distx::inline DISTX_ABI
