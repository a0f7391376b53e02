// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <distx/memory/lanes.hpp>
#include <distx/optim/optimizer.hpp>

/// A custom optimizer: sign descent with momentum (Chen et al., arXiv 2302.06675), whose rate has a limit.
struct Lion {
  double beta1 = 0.9;
  double beta2 = 0.99;
  double limit = 0.5;

  static constexpr std::size_t states = 1;

  template <class T>
  struct Coefficients {
    T rate, beta1, beta2, limit;
  };
  template <class T>
  [[nodiscard]] constexpr Coefficients<T> coefficients(const distx::Step& step) const {
    return {static_cast<T>(step.learning_rate), static_cast<T>(beta1), static_cast<T>(beta2), static_cast<T>(limit)};
  }
  template <class T, class V>
  static constexpr void update(const Coefficients<T>& c, V& weight, V gradient, V& mean) {
    using std::copysign;
    const V direction = c.beta1 * mean + (T{1} - c.beta1) * gradient;
    const V rate = distx::select(V(c.limit) < V(c.rate), V(c.limit), V(c.rate));
    weight -= rate * copysign(V{1}, direction);
    mean = c.beta2 * mean + (T{1} - c.beta2) * gradient;
  }
};

/// Without any state.
struct PlainDescent {
  static constexpr std::size_t states = 0;
  template <class T>
  [[nodiscard]] constexpr T coefficients(const distx::Step& step) const {
    return static_cast<T>(step.learning_rate);
  }
  template <class T, class V>
  static constexpr void update(const T& rate, V& weight, V gradient) {
    weight -= rate * gradient;
  }
};
