// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "distx/core/deadline.hpp"
#include "distx/core/detail/wait.hpp"
#include "distx/core/error.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Writes a line to stderr, once, if DISTX_LOG=info and a wait has lasted for a quarter of its deadline, or a minute.
///
/// The wait begins at the first call of a member function: most waits are over before.
class EarlyWarning {
 public:
  using clock = Deadline::clock;

  explicit EarlyWarning(const Timeout& timeout) noexcept {
    const auto most = Timeout(std::chrono::minutes(1)).limit();
    patience_ = timeout.unlimited() ? most : std::min(most, timeout.limit() / 4);
  }

  /// Returns whether DISTX_LOG=info.
  [[nodiscard]] static bool is_on() noexcept {
    const char* const log = std::getenv("DISTX_LOG");
    return log != nullptr && std::string_view(log) == "info";
  }
  [[nodiscard]] clock::time_point due() noexcept {
    if (!due_) due_ = is_on() ? clock::now() + patience_ : clock::time_point::max();
    return *due_;
  }
  /// @param overdue  returns which ranks are missing, or the message that the wait has at its deadline: "timed out
  /// after 5 s: rank 1 did not join; a consequence of the timeout"
  template <class Overdue>
  void operator()(const ErrorContext& context, Overdue&& overdue) {
    if (due() == clock::time_point::max() || clock::now() < due()) return;
    due_ = clock::time_point::max();
    std::string missing = overdue();
    if (const auto begin = missing.find(": "); begin != std::string::npos) missing.erase(0, begin + 2);
    missing.resize(std::min(missing.find("; "), missing.size()));
    std::fputs(
        (error_message("waiting for " + Timeout(patience_).to_string() + ": " + missing, context) + "\n").c_str(),
        stderr);
  }

 private:
  Timeout::duration patience_;
  std::optional<clock::time_point> due_{};  ///< the latest if there is nothing to write anymore
};

/// Waits until `ready()` by `wait(deadline, ready, stopped)`, by default `wait_until`; returns whether `stopped()` has
/// ended the wait.
/// @param overdue  returns the message of a timeout, "timed out after 5 s: rank 1 did not join"
/// @throws TimeoutError
template <class Ready, class Stopped, class Overdue, class Wait>
[[nodiscard]] bool wait_for_ranks(const Timeout& deadline, const ErrorContext& context, Ready&& ready,
                                  Stopped&& stopped, Overdue&& overdue, Wait&& wait) {
  EarlyWarning warning(deadline);
  const auto end = wait(deadline, ready, [&] { return warning(context, overdue), stopped(); });
  if (end == WaitEnd::expired) throw TimeoutError(overdue(), context);
  return end == WaitEnd::stopped;
}
template <class Ready, class Stopped, class Overdue>
[[nodiscard]] bool wait_for_ranks(const Timeout& deadline, const ErrorContext& context, Ready&& ready,
                                  Stopped&& stopped, Overdue&& overdue) {
  return wait_for_ranks(deadline, context, ready, stopped, overdue, [](auto&&... with) { return wait_until(with...); });
}

}  // namespace distx::inline DISTX_ABI::detail
