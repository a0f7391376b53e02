// expect: distx: an optimizer computes several elements at once, so a comparison cannot choose between branches; write distx::select(condition, then, otherwise) instead of if, ?:, std::min or std::max
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

/// Clips each element's gradient.
struct Clipped {
  static constexpr std::size_t states = 0;
  template <class T>
  constexpr T coefficients(const distx::Step& step) const {
    return static_cast<T>(step.learning_rate);
  }
  template <class T, class V>
  static constexpr void update(const T& rate, V& weight, V gradient) {
#ifndef DISTX_POSITIVE
    weight -= gradient > V(1) ? V(rate) : rate * gradient;
#else
    weight -= distx::select(gradient > V(1), V(rate), rate * gradient);
#endif
  }
};

void train(distx::ThreadCommunicator& comm, const std::vector<distx::Parameter<float>>& parameters) {
  distx::DataParallel<> training(comm, parameters, Clipped{});
}
