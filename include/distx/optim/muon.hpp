// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/memory/detail/moving_average.hpp"
#include "distx/memory/local_matmul.hpp"
#include "distx/memory/operations.hpp"
#include "distx/optim/two_pass_optimizer.hpp"

namespace distx::inline DISTX_ABI {

/// Muon, for the matrices inside a network: Jordan et al., "Muon: An optimizer for hidden layers in neural networks",
/// https://kellerjordan.github.io/posts/muon (2024).
///
/// v = momentum * v + g;  u = nesterov ? g + momentum * v : v, made nearly orthogonal by a few Newton-Schulz iterations
/// X = a X + (b X Xᵀ + c (X Xᵀ)²) X from X = u / |u|, which brings its singular values near 1;
/// w -= rate * (sqrt(max(1, rows / columns)) * X + decay * w). Train embeddings, heads and vectors with another
/// optimizer, see Mixed.
struct Muon {
  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0;
  int iterations = 5;

  /// Values kept for each weight.
  static constexpr std::size_t states = 1;
  /// Their names in checkpoints, which are PyTorch's.
  static constexpr std::array<std::string_view, 1> state_names{"momentum_buffer"};

  /// The numbers that all elements of a step share.
  template <class T>
  struct Coefficients {
    detail::MovingSum<T> velocity;
    T from_velocity, from_gradient, rate;
    T decay;  ///< learning rate * weight decay
  };

  /// @throws InvalidArgument for invalid hyperparameters
  void validate() const {
    detail::check_range("Muon", "momentum", momentum, 0, 1);
    detail::check_range("Muon", "weight_decay", weight_decay, 0, HUGE_VAL);
    if (iterations < 1 || iterations > 100)
      throw InvalidArgument("invalid iterations " + std::to_string(iterations) + ": must be in [1, 100]",
                            {.operation = "Muon"});
  }

  /// Returns the numbers of one step.
  template <class T>
  [[nodiscard]] Coefficients<T> coefficients(const Step& step) const {
    return {detail::MovingSum<T>::keeping(momentum), nesterov ? static_cast<T>(momentum) : T{1}, nesterov ? T{1} : T{0},
            static_cast<T>(step.learning_rate),
            static_cast<T>(step.learning_rate * step.weight_decay.value_or(weight_decay))};
  }

  /// Updates the state of one element and returns its direction.
  template <class T, class V>
  static constexpr V direction(const Coefficients<T>& c, V, V gradient, V& velocity) {
    c.velocity.add(velocity, gradient);
    return c.from_velocity * velocity + c.from_gradient * gradient;
  }
  /// Moves one weight along its direction, scaled by `factor`.
  template <class T, class V>
  static constexpr void apply(const Coefficients<T>& c, V& weight, V direction, V factor) {
    weight -= c.rate * factor * direction + c.decay * weight;
  }

  /// Returns the elements of scratch memory that `transform` needs.
  [[nodiscard]] static std::size_t scratch(MatrixShape shape) {
    const std::size_t side = std::min(shape.rows, shape.columns);
    return shape.size() + 2 * side * side;
  }

  /// Orthogonalizes the direction in place; returns the factor for `apply`.
  template <class Stream, class T, class Space>
  double transform(Stream stream, MatrixShape shape, Span<T, Space> direction, Span<T, Space> scratch) const {
    constexpr bool multiplies = requires(MatrixRef<T, Space> m) { local_matmul(stream, m, m, m); };
    static_assert(multiplies, "distx::Muon: matrix products in GPU memory are cuBLAS's; include <distx/cuda_blas.hpp>");
    if constexpr (multiplies) orthogonalize(stream, shape, direction, scratch);
    return std::sqrt(std::max(1.0, static_cast<double>(shape.rows) / static_cast<double>(shape.columns)));
  }

 private:
  template <class Stream, class T, class Space>
  void orthogonalize(Stream stream, MatrixShape shape, Span<T, Space> direction, Span<T, Space> scratch) const {
    const double norm = std::sqrt(sum_of_squares(stream, direction));
    const std::size_t side = std::min(shape.rows, shape.columns);
    MatrixRef<T, Space> x{direction, shape.rows, shape.columns};
    MatrixRef<T, Space> next{scratch.first(shape.size()), shape.rows, shape.columns};
    if (shape.rows > shape.columns) x = x.transpose(), next = next.transpose();  // so that X Xᵀ is the smaller product
    const MatrixRef<T, Space> gram{scratch.subspan(shape.size(), side * side), side, side};
    const MatrixRef<T, Space> factor{scratch.subspan(shape.size() + side * side, side * side), side, side};
    // Scaled first, because squares of large or small values overflow or underflow. Zeros stay zeros.
    scale(stream, direction, 1 / std::max(norm, 1e-30));
    for (int i = 0; i < iterations; ++i) {
      local_matmul(stream, gram, x, x.transpose());
      copy(stream, factor.values, gram.values);
      local_matmul(stream, factor, gram, gram, static_cast<T>(cubed), static_cast<T>(squared));
      copy(stream, next.values, x.values);
      local_matmul(stream, next, factor, x, T{1}, static_cast<T>(linear));
      std::swap(x, next);
    }
    copy(stream, direction, x.values);
  }

  // a, b and c of the source: the steepest slope at 0, and singular values within [0.7, 1.2] after five iterations.
  static constexpr double linear = 3.4445, squared = -4.7750, cubed = 2.0315;
};

}  // namespace distx::inline DISTX_ABI
