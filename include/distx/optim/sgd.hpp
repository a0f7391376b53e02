// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/memory/detail/moving_average.hpp"
#include "distx/optim/optimizer.hpp"

namespace distx::inline DISTX_ABI {

/// Stochastic gradient descent with momentum, optionally Nesterov's.
///
/// g += decay * w;  v = momentum * v + g;  w -= rate * (nesterov ? g + momentum * v : v). The momentum is that of
/// Sutskever et al., "On the importance of initialization and momentum in deep learning" (2013), with the rate taken
/// out of v as in PyTorch, so that a change of the rate takes effect at once. Weight decay is added to the gradient.
struct SGD {
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;

  /// Values kept for each weight.
  static constexpr std::size_t states = 1;
  /// Their names in checkpoints, which are PyTorch's.
  static constexpr std::array<std::string_view, 1> state_names{"momentum_buffer"};

  /// The numbers that all elements of a step share.
  template <class T>
  struct Coefficients {
    detail::MovingSum<T> velocity;
    T decay;
    T from_velocity;  ///< the step is from_velocity * v + from_gradient * g
    T from_gradient;
  };

  /// @throws InvalidArgument for invalid hyperparameters
  void validate() const {
    detail::check_range("SGD", "momentum", momentum, 0, 1);
    detail::check_range("SGD", "weight_decay", weight_decay, 0, HUGE_VAL);
    if (nesterov && momentum == 0)
      throw InvalidArgument("nesterov needs momentum, which is 0: set momentum, such as 0.9", {.operation = "SGD"});
  }

  /// Returns the numbers of one step.
  template <class T>
  [[nodiscard]] constexpr Coefficients<T> coefficients(const Step& step) const {
    const double rate = step.learning_rate;
    return {detail::MovingSum<T>::keeping(momentum), static_cast<T>(step.weight_decay.value_or(weight_decay)),
            static_cast<T>(nesterov ? rate * momentum : rate), static_cast<T>(nesterov ? rate : 0)};
  }

  /// Updates one element; V is a number or several at once.
  template <class T, class V>
  static constexpr void update(const Coefficients<T>& c, V& weight, V gradient, V& velocity) {
    gradient += c.decay * weight;
    c.velocity.add(velocity, gradient);
    weight -= c.from_velocity * velocity + c.from_gradient * gradient;
  }
};

}  // namespace distx::inline DISTX_ABI
