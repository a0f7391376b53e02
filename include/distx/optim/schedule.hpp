// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>
#include <concepts>
#include <cstdint>
#include <numbers>

#include "distx/core/error.hpp"
#include "distx/optim/step.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

inline void check_steps(const char* schedule, std::uint64_t steps) {
  if (steps == 0)
    throw InvalidArgument("invalid steps 0: must be at least 1 (use constant for a fixed rate)",
                          {.operation = schedule});
}

/// Returns the completed fraction of `steps`: 1 from the last step on.
inline double completed(std::uint64_t step, std::uint64_t steps) noexcept {
  return step >= steps ? 1 : static_cast<double>(step) / static_cast<double>(steps);
}

}  // namespace detail

namespace schedules {

/// A function from the number of a step, from 0, to its learning rate; a custom function works as well as those below.
template <class S>
concept Schedule = std::copy_constructible<S> && std::regular_invocable<const S&, std::uint64_t> &&
                   std::convertible_to<std::invoke_result_t<const S&, std::uint64_t>, double>;

/// Returns a Schedule with the same rate in every step.
/// @throws InvalidArgument unless rate is finite and at least 0
[[nodiscard]] inline auto constant(double rate) {
  detail::check_range("constant", "learning rate", rate, 0, HUGE_VAL);
  return [=](std::uint64_t) { return rate; };
}

/// Returns a Schedule that goes linearly from `first` to `last`, which it reaches at step `steps` and keeps.
/// @throws InvalidArgument unless steps >= 1 and the rates are finite and at least 0
[[nodiscard]] inline auto linear(double first, std::uint64_t steps, double last = 0) {
  detail::check_range("linear", "first rate", first, 0, HUGE_VAL);
  detail::check_range("linear", "last rate", last, 0, HUGE_VAL);
  detail::check_steps("linear", steps);
  return [=](std::uint64_t step) { return first + (last - first) * detail::completed(step, steps); };
}

/// Returns a Schedule that goes along half a cosine from `first` to `last`, which it reaches at step `steps` and keeps:
/// Loshchilov and Hutter, arXiv 1608.03983, without restarts.
/// @throws InvalidArgument unless steps >= 1 and the rates are finite and at least 0
[[nodiscard]] inline auto cosine(double first, std::uint64_t steps, double last = 0) {
  detail::check_range("cosine", "first rate", first, 0, HUGE_VAL);
  detail::check_range("cosine", "last rate", last, 0, HUGE_VAL);
  detail::check_steps("cosine", steps);
  return [=](std::uint64_t step) {
    return last + (first - last) * 0.5 * (1 + std::cos(std::numbers::pi * detail::completed(step, steps)));
  };
}

/// Returns a Schedule that rises linearly to the first rate of `then`, reached at step `steps`, where `then` starts.
template <Schedule S>
[[nodiscard]] auto warm_up(std::uint64_t steps, S then) {
  return [steps, then = std::move(then)](std::uint64_t step) -> double {
    if (step >= steps) return then(step - steps);
    return then(std::uint64_t{0}) * static_cast<double>(step + 1) / static_cast<double>(steps);
  };
}

}  // namespace schedules

}  // namespace distx::inline DISTX_ABI
