// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "distx/core/deadline.hpp"
#include "distx/core/error.hpp"

namespace distx::detail {

/// Writes a line to stderr, once, if DISTX_LOG=info and a wait has lasted for a quarter of its deadline, or a minute.
class EarlyWarning {
 public:
  using clock = Deadline::clock;

  /// Begins a wait.
  explicit EarlyWarning(const Timeout& timeout) {
    const char* const log = std::getenv("DISTX_LOG");
    if (log == nullptr || std::string_view(log) != "info") return;
    const auto most = Timeout(std::chrono::minutes(1)).limit();
    patience_ = timeout.unlimited() ? most : std::min(most, timeout.limit() / 4);
    due_ = clock::now() + patience_;
  }

  [[nodiscard]] clock::time_point due() const noexcept { return due_; }
  /// @param overdue  returns the message that the wait has at its deadline: "timed out after 5 s: rank 1 did not join"
  template <class Overdue>
  void operator()(const ErrorContext& context, Overdue&& overdue) {
    if (due_ == clock::time_point::max() || clock::now() < due_) return;
    due_ = clock::time_point::max();
    const std::string message = overdue();
    const auto missing = message.substr(std::min(message.size(), message.find(": ") + 2));
    std::fputs(
        (error_message("waiting for " + Timeout(patience_).to_string() + ": " + missing, context) + "\n").c_str(),
        stderr);
  }

 private:
  Timeout::duration patience_{};
  clock::time_point due_ = clock::time_point::max();
};

}  // namespace distx::detail
