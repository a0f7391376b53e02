// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>

#include "distx/optim/fused_update.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

template <class Optimizer, class T, class V, std::size_t... I>
auto directs(std::index_sequence<I...>)
    -> decltype(Optimizer::direction(std::declval<const coefficients_t<Optimizer, T>&>(), std::declval<V>(),
                                     std::declval<V>(), std::declval<std::array<V, sizeof...(I)>&>()[I]...));

/// `direction` and `apply` accept elements of type V, a number T or several of them.
template <class O, class T, class V>
concept Directs = requires(const coefficients_t<O, T>& coefficients, V& weight) {
  { directs<O, T, V>(std::make_index_sequence<O::states>{}) } -> std::convertible_to<V>;
  O::apply(coefficients, weight, V{}, V{});
};

/// The requirements common to optimizers that need a whole parameter between two passes over its elements.
template <class O, class T>
concept DirectsElements = Directs<O, T, T> && Directs<O, T, Lanes<T>>;

/// The first pass as an elementwise optimizer: its first state is the direction, and it leaves the weight unchanged (a
/// kernel stores it again).
template <class Optimizer>
struct FirstPass {
  Optimizer optimizer;

  static constexpr std::size_t states = 1 + Optimizer::states;
  template <class T>
  auto coefficients(const Step& step) const {
    return optimizer.template coefficients<T>(step);
  }
  template <class C, class V, class... S>
  static constexpr void update(const C& c, V& weight, V gradient, V& direction, S&... state) {
    direction = Optimizer::direction(c, weight, gradient, state...);
  }
};

/// The second pass as an elementwise optimizer; it does not use the gradient.
template <class Optimizer>
struct SecondPass {
  Optimizer optimizer;
  double factor;

  static constexpr std::size_t states = 1;
  template <class C, class T>
  struct Coefficients {
    C own;
    T factor;
  };
  template <class T>
  auto coefficients(const Step& step) const {
    return Coefficients<coefficients_t<Optimizer, T>, T>{optimizer.template coefficients<T>(step),
                                                         static_cast<T>(factor)};
  }
  template <class C, class V>
  static constexpr void update(const C& c, V& weight, V, V& direction) {
    Optimizer::apply(c.own, weight, direction, V(c.factor));
  }
};

/// Which of the two passes an elementwise optimizer is; 0 if it is neither.
template <class O>
inline constexpr int number_of_pass = 0;
template <class O>
inline constexpr int number_of_pass<FirstPass<O>> = 1;
template <class O>
inline constexpr int number_of_pass<SecondPass<O>> = 2;

}  // namespace detail

/// Runs the first pass over a parameter or a part of one: updates the states and writes each element's direction.
///
/// All spans have the same length. `direction` may be the gradient's memory if both have the same type.
template <class Optimizer, FloatingElement T>
void fused_direction(HostStream stream, const Optimizer& optimizer, const Step& step, Span<T> weight,
                     Span<const T> gradient, Span<accumulator_t<T>> direction,
                     const std::array<Span<accumulator_t<T>>, Optimizer::states>& state) {
  std::array<Span<accumulator_t<T>>, 1 + Optimizer::states> all;
  all[0] = direction;
  for (std::size_t s = 0; s < Optimizer::states; ++s) all[s + 1] = state[s];
  fused_update(stream, detail::FirstPass<Optimizer>{optimizer}, step, weight, gradient, all);
}

/// Runs the second pass: updates the weights along the direction, with the factor of the whole parameter.
template <class Optimizer, FloatingElement T>
void fused_apply(HostStream stream, const Optimizer& optimizer, const Step& step, double factor, Span<T> weight,
                 Span<accumulator_t<T>> direction) {
  fused_update(stream, detail::SecondPass<Optimizer>{optimizer, factor}, step, weight, Span<const T>(weight),
               {direction});
}

/// An optimizer whose step for each element depends on two norms over the whole parameter, of the weight and of the
/// direction, such as LAMB.
///
/// It contains no communication; distx reduces the norms of a sharded parameter. `states`, `coefficients` and
/// `validate` are those of an ElementwiseOptimizer; instead of `update` it needs:
/// - `template <class V> static constexpr V direction(const auto& coefficients, V weight, V gradient, V& state…)`:
///   updates one element's state and returns its direction;
/// - `static double trust(double weight_norm, double direction_norm)`: returns a factor, given the Euclidean norms;
/// - `template <class V> static constexpr void apply(const auto& coefficients, V& weight, V direction, V factor)`:
///   updates one weight.
///
/// On GPUs `direction` and `apply` are constexpr, and one line registers it (distx/cuda_kernels.cuh).
template <class O>
concept NormOptimizer = std::copyable<O> && requires {
  { O::states } -> std::convertible_to<std::size_t>;
  { O::trust(double{}, double{}) } -> std::convertible_to<double>;
} && detail::DirectsElements<O, float> && detail::DirectsElements<O, double>;

/// The shape of a parameter as a row-major matrix.
struct MatrixShape {
  std::size_t rows = 0;
  std::size_t columns = 0;

  /// Returns the number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return rows * columns; }
  friend bool operator==(const MatrixShape&, const MatrixShape&) = default;
};

/// An optimizer that needs the whole gradient matrix of a parameter, such as Muon; each matrix is assigned to one rank.
///
/// It contains no communication. `states`, `coefficients`, `direction` and `apply` are those of a NormOptimizer;
/// instead of `trust`, between the two passes, it needs:
/// - `static std::size_t scratch(MatrixShape)`: elements of scratch memory that `transform` needs;
/// - `template <class T> double transform(HostStream, MatrixShape, Span<T> direction, Span<T> scratch) const`: changes
///   the direction (float or double, row-major) in place and returns the factor for `apply`.
///
/// On GPUs it is registered as a NormOptimizer, and `transform` is called with a CudaStreamRef and spans of GPU memory.
template <class O>
concept MatrixOptimizer = std::copyable<O> && requires(const O& optimizer, MatrixShape shape, Span<float> values) {
  { O::states } -> std::convertible_to<std::size_t>;
  { O::scratch(shape) } -> std::convertible_to<std::size_t>;
  { optimizer.transform(HostStream{}, shape, values, values) } -> std::convertible_to<double>;
} && detail::DirectsElements<O, float> && detail::DirectsElements<O, double>;

}  // namespace distx::inline DISTX_ABI
