// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>

#include "distx/core/span.hpp"
#include "distx/optim/optimizer.hpp"

namespace distx {

namespace detail {

inline constexpr std::size_t update_block = 64;

/// Updates exactly `update_block` elements.
template <class Optimizer, class T, class A>
inline void update_one_block(const coefficients_t<Optimizer, A>& coefficients, T* weight, const T* gradient,
                             const std::array<A*, Optimizer::states>& state) {
  for (std::size_t i = 0; i < update_block; ++i) {
    A value = static_cast<A>(weight[i]);
    std::array<A, Optimizer::states> kept{};
    for (std::size_t s = 0; s < Optimizer::states; ++s) kept[s] = state[s][i];
    update_element<Optimizer, A>(coefficients, value, static_cast<A>(gradient[i]), kept,
                                 std::make_index_sequence<Optimizer::states>{});
    for (std::size_t s = 0; s < Optimizer::states; ++s) state[s][i] = kept[s];
    weight[i] = static_cast<T>(value);
  }
}

}  // namespace detail

/// One pass of the optimizer over `weight`, `gradient` and its state, all of one length and none overlapping.
///
/// bfloat16 and float16 are computed and keep their state in float. Every element goes through the same instructions,
/// the last few of a span too: the bits do not depend on where a parameter is cut.
template <ElementwiseOptimizer Optimizer, FloatingElement T>
void fused_update(HostStream, const Optimizer& optimizer, const Step& step, Span<T> weight, Span<const T> gradient,
                  const std::array<Span<accumulator_t<T>>, Optimizer::states>& state) {
  using A = accumulator_t<T>;
  constexpr std::size_t block = detail::update_block;
  const auto coefficients = optimizer.template coefficients<A>(step);
  // Padding for the last, incomplete block: ones, with which no optimizer divides by zero.
  std::array<T, block> last_weight;
  std::array<T, block> last_gradient;
  std::array<std::array<A, block>, Optimizer::states> last_state;
  for (std::size_t begin = 0; begin < weight.size(); begin += block) {
    const std::size_t count = std::min(block, weight.size() - begin);
    T* values = weight.data() + begin;
    const T* gradients = gradient.data() + begin;
    std::array<A*, Optimizer::states> states;
    for (std::size_t s = 0; s < Optimizer::states; ++s) states[s] = state[s].data() + begin;
    const bool whole = count == block;
    if (!whole) {
      last_weight.fill(T(1.0f));
      last_gradient.fill(T(1.0f));
      std::copy_n(values, count, last_weight.data());
      std::copy_n(gradients, count, last_gradient.data());
      values = last_weight.data();
      gradients = last_gradient.data();
      for (std::size_t s = 0; s < Optimizer::states; ++s) {
        last_state[s].fill(A{1});
        std::copy_n(states[s], count, last_state[s].data());
        states[s] = last_state[s].data();
      }
    }
    detail::update_one_block<Optimizer, T, A>(coefficients, values, gradients, states);
    if (!whole) {
      std::copy_n(last_weight.data(), count, weight.data() + begin);
      for (std::size_t s = 0; s < Optimizer::states; ++s)
        std::copy_n(last_state[s].data(), count, state[s].data() + begin);
    }
  }
}

}  // namespace distx
