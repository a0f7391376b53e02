// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <chrono>
#include <string>

namespace distx {

/// `{.deadline = no_timeout}`: wait as long as it takes.
struct NoTimeout {};
inline constexpr NoTimeout no_timeout{};

/// How long a wait may last: a duration, or `no_timeout`.
class Timeout {
 public:
  using duration = std::chrono::nanoseconds;
  /// What lasts longer is no deadline: it would not fit the clock. A hundred years.
  static constexpr std::chrono::duration<double> longest{3.2e9};

  constexpr Timeout(NoTimeout) noexcept : limit_(duration::max()) {}  // NOLINT
  template <class Rep, class Period>
  constexpr Timeout(std::chrono::duration<Rep, Period> limit) noexcept  // NOLINT
      : limit_(std::chrono::duration<double>(limit) < longest ? std::chrono::duration_cast<duration>(limit)
                                                              : duration::max()) {}

  [[nodiscard]] constexpr bool unlimited() const noexcept { return limit_ == duration::max(); }
  [[nodiscard]] constexpr duration limit() const noexcept { return limit_; }
  /// As a reader wants it: `1.5 s`.
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

/// Where nothing else is said, a wait ends in a `TimeoutError` after this long.
inline constexpr Timeout default_deadline = std::chrono::minutes(10);

/// The moment at which a `Timeout` that begins now ends.
class Deadline {
 public:
  using clock = std::chrono::steady_clock;

  explicit Deadline(Timeout timeout, clock::time_point now = clock::now()) noexcept
      : end_(timeout.unlimited() ? clock::time_point::max() : now + timeout.limit()) {}

  [[nodiscard]] bool unlimited() const noexcept { return end_ == clock::time_point::max(); }
  [[nodiscard]] bool expired() const noexcept { return !unlimited() && clock::now() >= end_; }
  [[nodiscard]] clock::time_point end() const noexcept { return end_; }

 private:
  clock::time_point end_;
};

}  // namespace distx
