// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/memory/detail/moving_average.hpp"
#include "distx/optim/two_pass_optimizer.hpp"

namespace distx::inline DISTX_ABI {

/// LAMB, for large batches: You et al., arXiv 1904.00962, algorithm 2, with phi(x) = x.
///
/// m and v as in AdamW;  u = m' / (sqrt(v') + epsilon) + decay * w;  w -= rate * (|w| / |u|) * u, with norms over one
/// parameter; if one of the norms is 0, w -= rate * u.
struct LAMB {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-6;
  double weight_decay = 0.01;

  /// Values kept for each weight.
  static constexpr std::size_t states = 2;
  /// Their names in checkpoints, which are PyTorch's.
  static constexpr std::array<std::string_view, 2> state_names{"exp_avg", "exp_avg_sq"};

  /// The numbers that all elements of a step share.
  template <class T>
  struct Coefficients {
    detail::MovingAverage<T> mean, square;
    T epsilon, decay, rate;
    T correction;       ///< 1 / (1 - beta1^t)
    T root_correction;  ///< 1 / sqrt(1 - beta2^t)
  };

  /// @throws InvalidArgument for invalid hyperparameters
  void validate() const {
    detail::check_range("LAMB", "beta1", beta1, 0, 1);
    detail::check_range("LAMB", "beta2", beta2, 0, 1);
    detail::check_range("LAMB", "weight_decay", weight_decay, 0, HUGE_VAL);
    detail::check_epsilon("LAMB", epsilon);
  }

  /// Returns the numbers of one step.
  template <class T>
  [[nodiscard]] Coefficients<T> coefficients(const Step& step) const {
    const auto t = static_cast<double>(step.number);
    const auto of_mean = detail::MovingAverage<T>::keeping(beta1);
    const auto of_square = detail::MovingAverage<T>::keeping(beta2);
    return {of_mean,
            of_square,
            static_cast<T>(epsilon),
            static_cast<T>(step.weight_decay.value_or(weight_decay)),
            static_cast<T>(step.learning_rate),
            static_cast<T>(1 / (1 - std::pow(of_mean.kept(), t))),
            static_cast<T>(1 / std::sqrt(1 - std::pow(of_square.kept(), t)))};
  }

  /// Updates the state of one element and returns its direction.
  template <class T, class V>
  static constexpr V direction(const Coefficients<T>& c, V weight, V gradient, V& mean, V& square) {
    using std::sqrt;
    c.mean.add(mean, gradient);
    c.square.add(square, detail::finite_square<T>(gradient));
    return c.correction * mean / (sqrt(square) * c.root_correction + c.epsilon) + c.decay * weight;
  }
  /// Returns the trust ratio of a parameter, by which its learning rate is multiplied.
  [[nodiscard]] static double trust(double weight_norm, double direction_norm) {
    return weight_norm > 0 && direction_norm > 0 ? weight_norm / direction_norm : 1;
  }
  /// Moves one weight along its direction, scaled by `factor`.
  template <class T, class V>
  static constexpr void apply(const Coefficients<T>& c, V& weight, V direction, V factor) {
    weight -= c.rate * factor * direction;
  }
};

}  // namespace distx::inline DISTX_ABI
