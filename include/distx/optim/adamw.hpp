// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>

#include "distx/memory/detail/moving_average.hpp"
#include "distx/optim/optimizer.hpp"

namespace distx::inline DISTX_ABI {

/// Adam with decoupled weight decay: Loshchilov and Hutter, arXiv 1711.05101, algorithm 2.
///
/// m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g²;  in step t, with m' = m / (1 - beta1^t) and
/// v' = v / (1 - beta2^t):  w -= rate * (m' / (sqrt(v') + epsilon) + decay * w). As in PyTorch, the decay is multiplied
/// by the learning rate, not only by its schedule.
///
/// Of beta and 1 - beta only the smaller one is rounded, and the corrections use what the other one then is. Weights
/// decay in steps of their last place. In float the mean decay of many weights is within 0.5% from rate * decay = 1e-6
/// on, and a weight without gradient keeps its value below 3e-8; in bfloat16 without `Precision`, below 2e-3. The way
/// out is weights of double, or for bfloat16 `Precision` with float masters.
struct AdamW {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;

  /// Values kept for each weight.
  static constexpr std::size_t states = 2;
  /// Their names in checkpoints, which are PyTorch's.
  static constexpr std::array<std::string_view, 2> state_names{"exp_avg", "exp_avg_sq"};

  /// The numbers that all elements of a step share.
  template <class T>
  struct Coefficients {
    detail::MovingAverage<T> mean;
    detail::MovingAverage<T> square;
    T epsilon;
    T rate;             ///< learning rate / (1 - beta1^t)
    T root_correction;  ///< 1 / sqrt(1 - beta2^t)
    T decay;            ///< learning rate * weight decay
  };

  /// @throws InvalidArgument for invalid hyperparameters
  void validate() const {
    detail::check_range("AdamW", "beta1", beta1, 0, 1);
    detail::check_range("AdamW", "beta2", beta2, 0, 1);
    detail::check_range("AdamW", "weight_decay", weight_decay, 0, HUGE_VAL);
    detail::check_epsilon("AdamW", epsilon);
  }

  /// Returns the numbers of one step.
  template <class T>
  [[nodiscard]] constexpr Coefficients<T> coefficients(const Step& step) const {
    const auto t = static_cast<double>(step.number);
    const double decay = step.weight_decay.value_or(weight_decay);
    const auto of_mean = detail::MovingAverage<T>::keeping(beta1);
    const auto of_square = detail::MovingAverage<T>::keeping(beta2);
    return {of_mean,
            of_square,
            static_cast<T>(epsilon),
            static_cast<T>(step.learning_rate / (1 - std::pow(of_mean.kept(), t))),
            static_cast<T>(1 / std::sqrt(1 - std::pow(of_square.kept(), t))),
            static_cast<T>(step.learning_rate * decay)};
  }

  /// Updates one element; V is a number or several at once.
  template <class T, class V>
  static constexpr void update(const Coefficients<T>& c, V& weight, V gradient, V& mean, V& square) {
    using std::sqrt;
    c.mean.add(mean, gradient);
    c.square.add(square, detail::finite_square<T>(gradient));
    weight -= c.rate * mean / (sqrt(square) * c.root_correction + c.epsilon) + c.decay * weight;
  }
};

}  // namespace distx::inline DISTX_ABI
