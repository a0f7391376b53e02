// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>
#include <concepts>
#include <cstdint>
#include <numbers>
#include <string>

#include "distx/core/error.hpp"

namespace distx {

/// The learning rate of a step; the first step is 0. A function of the user's is one too.
template <class S>
concept Schedule = std::copy_constructible<S> && std::regular_invocable<const S&, std::uint64_t> &&
                   std::convertible_to<std::invoke_result_t<const S&, std::uint64_t>, double>;

namespace detail {

inline void check_rate(const char* schedule, const char* what, double rate) {
  if (!std::isfinite(rate) || rate < 0)
    throw Error(std::string(what) + " is " + std::to_string(rate) + ": it must be finite and at least 0",
                {.operation = schedule});
}
inline void check_steps(const char* schedule, std::uint64_t steps) {
  if (steps == 0) throw Error("it lasts 0 steps: give it 1 or more, or use constant", {.operation = schedule});
}

/// How much of `steps` lies behind: 1 from the last step on.
inline double behind(std::uint64_t step, std::uint64_t steps) noexcept {
  return step >= steps ? 1 : static_cast<double>(step) / static_cast<double>(steps);
}

}  // namespace detail

/// The same rate in every step.
[[nodiscard]] inline auto constant(double rate) {
  detail::check_rate("constant", "the rate", rate);
  return [=](std::uint64_t) { return rate; };
}

/// From `first` to `last` along a line, reached at step `steps` and kept.
[[nodiscard]] inline auto linear(double first, std::uint64_t steps, double last = 0) {
  detail::check_rate("linear", "the first rate", first);
  detail::check_rate("linear", "the last rate", last);
  detail::check_steps("linear", steps);
  return [=](std::uint64_t step) { return first + (last - first) * detail::behind(step, steps); };
}

/// From `first` to `last` along half a cosine, reached at step `steps` and kept: Loshchilov and Hutter,
/// arXiv 1608.03983, without restarts.
[[nodiscard]] inline auto cosine(double first, std::uint64_t steps, double last = 0) {
  detail::check_rate("cosine", "the first rate", first);
  detail::check_rate("cosine", "the last rate", last);
  detail::check_steps("cosine", steps);
  return [=](std::uint64_t step) {
    return last + (first - last) * 0.5 * (1 + std::cos(std::numbers::pi * detail::behind(step, steps)));
  };
}

/// Along a line from nearly nothing to the first rate of `then`, reached after `steps`; `then` begins after that.
template <Schedule S>
[[nodiscard]] auto warm_up(std::uint64_t steps, S then) {
  return [steps, then = std::move(then)](std::uint64_t step) -> double {
    if (step >= steps) return then(step - steps);
    return then(std::uint64_t{0}) * static_cast<double>(step + 1) / static_cast<double>(steps);
  };
}

}  // namespace distx
