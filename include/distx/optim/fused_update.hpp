// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>

#include "distx/core/span.hpp"
#include "distx/memory/buffer.hpp"
#include "distx/memory/lanes.hpp"
#include "distx/optim/optimizer.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

inline constexpr std::size_t update_block = 64;
/// How far ahead memory is prefetched. The hardware prefetcher alone keeps too few loads in flight, because there is
/// much arithmetic between two loads.
inline constexpr std::size_t prefetch_bytes = 2048;

/// Updates V::size elements, from i on.
template <class Optimizer, class V, class A>
void update_at(std::size_t i, const coefficients_t<Optimizer, A>& coefficients, A* weight, const V& gradient,
               const std::array<A*, Optimizer::states>& state) {
  V value = V::load(weight + i);
  std::array<V, Optimizer::states> kept;
  for (std::size_t s = 0; s < Optimizer::states; ++s) kept[s] = V::load(state[s] + i);
  update_element<Optimizer, V>(coefficients, value, gradient, kept, std::make_index_sequence<Optimizer::states>{});
  for (std::size_t s = 0; s < Optimizer::states; ++s) kept[s].store(state[s] + i);
  value.store(weight + i);
}

/// Updates `count` elements, a multiple of Lanes<A, Bytes>::size.
template <class Optimizer, class A>
struct UpdateLanes {
  template <std::size_t Bytes>
  static void run(const coefficients_t<Optimizer, A>& coefficients, A* weight, const A* gradient,
                  const std::array<A*, Optimizer::states>& state, std::size_t count) {
    using V = Lanes<A, Bytes>;
    for (std::size_t i = 0; i < count; i += V::size) {
      if (i % (alignment_bytes / sizeof(A)) == 0) {  // once a cache line
        const std::size_t ahead = std::min(i + prefetch_bytes / sizeof(A), count - 1);
        __builtin_prefetch(weight + ahead, 1);
        __builtin_prefetch(gradient + ahead, 0);
        for (std::size_t s = 0; s < Optimizer::states; ++s) __builtin_prefetch(state[s] + ahead, 1);
      }
      update_at<Optimizer>(i, coefficients, weight, V::load(gradient + i), state);
    }
  }
};

/// The width of lanes for an optimizer on this processor, in bytes.
template <class Optimizer, class A>
[[nodiscard]] std::size_t update_lane_bytes() noexcept {
  if constexpr (Updates<Optimizer, A, Lanes<A, 64>>)
    return lane_bytes();
  else
    return common_lane_bytes;
}

/// Runs a kernel that updates elements on lanes of `bytes`.
template <class Optimizer, class A, class Kernel = UpdateLanes<Optimizer, A>, class... Args>
void update_lanes(std::size_t bytes, const Args&... args) {
  if constexpr (Updates<Optimizer, A, Lanes<A, 64>>)
    run_on_lanes<Kernel>(bytes, args...);
  else
    run_on_common_lanes<Kernel, Args...>(args...);
}

/// A copy of a block of elements: `count` of them copied or converted, and 1 up to `end`, so that no optimizer divides
/// by zero.
template <class A>
struct Staged {
  alignas(alignment_bytes) std::array<A, update_block> values;

  template <class T>
  A* in(const T* from, std::size_t count, std::size_t end) {
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<A>(from[i]);
    for (std::size_t i = count; i < end; ++i) values[i] = A{1};
    return values.data();
  }
  template <class T>
  void out(T* to, std::size_t count) const {
    for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<T>(values[i]);
  }
};

}  // namespace detail

/// Updates all elements of `weight` in one pass over `weight`, `gradient` and the optimizer's states.
///
/// The spans have the same length and do not overlap. bfloat16 and float16 are computed in float and keep float states.
/// Every element, the last ones included, goes through the same instructions, so the bits do not depend on how a
/// parameter is partitioned.
template <ElementwiseOptimizer Optimizer, FloatingElement T>
void fused_update(HostStream, const Optimizer& optimizer, const Step& step, Span<T> weight, Span<const T> gradient,
                  const std::array<Span<accumulator_t<T>>, Optimizer::states>& state) {
  using A = accumulator_t<T>;
  constexpr std::size_t block = detail::update_block;
  constexpr std::size_t states = Optimizer::states;
  const auto coefficients = optimizer.template coefficients<A>(step);
  const std::size_t lane_bytes = detail::update_lane_bytes<Optimizer, A>();
  std::array<A*, states> here;
  const std::size_t lanes = lane_bytes / sizeof(A);
  std::size_t begin = 0;
  if constexpr (std::same_as<T, A>) {
    for (std::size_t s = 0; s < states; ++s) here[s] = state[s].data();
    begin = weight.size() / lanes * lanes;
    detail::update_lanes<Optimizer, A>(lane_bytes, coefficients, weight.data(), gradient.data(), here, begin);
  }
  detail::Staged<A> staged_weight, staged_gradient;
  std::array<detail::Staged<A>, states> staged_state;
  for (; begin < weight.size(); begin += block) {
    const std::size_t count = std::min(block, weight.size() - begin), end = (count + lanes - 1) / lanes * lanes;
    for (std::size_t s = 0; s < states; ++s) here[s] = staged_state[s].in(state[s].data() + begin, count, end);
    detail::update_lanes<Optimizer, A>(lane_bytes, coefficients, staged_weight.in(weight.data() + begin, count, end),
                                       staged_gradient.in(gradient.data() + begin, count, end), here, end);
    staged_weight.out(weight.data() + begin, count);
    for (std::size_t s = 0; s < states; ++s) staged_state[s].out(state[s].data() + begin, count);
  }
}

}  // namespace distx::inline DISTX_ABI
