// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <distx/optim/optimizer.hpp>

/// A user's own: plain descent by the fraction that each step is of the parameter (LARS without momentum).
struct Proportional {
  static constexpr std::size_t states = 0;
  template <class T>
  T coefficients(const distx::Step& step) const {
    return static_cast<T>(step.learning_rate);
  }
  template <class T, class V>
  static constexpr V direction(const T&, V, V gradient) {
    return gradient;
  }
  static double trust(double weight_norm, double direction_norm) {
    return direction_norm > 0 ? weight_norm / direction_norm : 0;
  }
  template <class T, class V>
  static constexpr void apply(const T& rate, V& weight, V direction, V factor) {
    weight -= rate * factor * direction;
  }
};
