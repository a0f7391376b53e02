// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <span>

#include "distx/comm/ops.hpp"
#include "distx/optim/fused_update.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Averages the gradients of all ranks and updates `count` weights, a multiple of Lanes<A, Bytes>::size.
template <class Optimizer, class A>
struct AverageAndUpdateLanes {
  /// How far ahead memory is prefetched: more arrays are in use than in `fused_update`, and 2048 bytes were slower.
  static constexpr std::size_t ahead_bytes = 512;

  template <std::size_t Bytes>
  static void run(const coefficients_t<Optimizer, A>& coefficients, A* weight, const void* const* gradients,
                  std::size_t ranks, const std::array<A*, Optimizer::states>& state, std::size_t count) {
    using V = Lanes<A, Bytes>;
    const auto of = [&](std::size_t rank) { return static_cast<const A*>(gradients[rank]); };
    for (std::size_t i = 0; i < count; i += V::size) {
      if (i % (alignment_bytes / sizeof(A)) == 0) {  // once a cache line
        const std::size_t ahead = std::min(i + ahead_bytes / sizeof(A), count - 1);
        __builtin_prefetch(weight + ahead, 1);
        for (std::size_t r = 0; r < ranks; ++r) __builtin_prefetch(of(r) + ahead, 0);
        for (std::size_t s = 0; s < Optimizer::states; ++s) __builtin_prefetch(state[s] + ahead, 1);
      }
      V sum = V::load(of(0) + i);
      for (std::size_t r = 1; r < ranks; ++r) sum += V::load(of(r) + i);
      update_at<Optimizer>(i, coefficients, weight, sum / V(static_cast<A>(ranks)), state);
    }
  }
};

/// Updates all elements of `weight` by the average of all ranks' gradients, in one pass that stores no average.
///
/// The bits are those of a reduction with `average` followed by `fused_update`.
/// @param gradients  where each rank's gradients of these weights begin, in rank order
template <ElementwiseOptimizer Optimizer, std::floating_point A>
void average_and_update(const Optimizer& optimizer, const Step& step, Span<A> weight,
                        std::span<const void* const> gradients, const std::array<Span<A>, Optimizer::states>& state) {
  const auto coefficients = optimizer.template coefficients<A>(step);
  const std::size_t lane_bytes = update_lane_bytes<Optimizer, A>();
  const std::size_t lanes = lane_bytes / sizeof(A);
  const std::size_t whole = weight.size() / lanes * lanes, rest = weight.size() - whole;
  std::array<A*, Optimizer::states> states;
  for (std::size_t s = 0; s < Optimizer::states; ++s) states[s] = state[s].data();
  update_lanes<Optimizer, A, AverageAndUpdateLanes<Optimizer, A>>(lane_bytes, coefficients, weight.data(),
                                                                  gradients.data(), gradients.size(), states, whole);
  if (rest == 0) return;
  std::array<A, Lanes<A, 64>::size> averages;  // fewer than a register holds
  for (std::size_t i = 0; i < rest; ++i) {
    A sum = static_cast<const A*>(gradients[0])[whole + i];
    for (std::size_t r = 1; r < gradients.size(); ++r) sum += static_cast<const A*>(gradients[r])[whole + i];
    averages[i] = average.finish(sum, static_cast<int>(gradients.size()));
  }
  auto rests = state;
  for (auto& each : rests) each = each.subspan(whole, rest);
  fused_update(HostStream{}, optimizer, step, weight.subspan(whole, rest), Span<const A>(averages.data(), rest), rests);
}

}  // namespace distx::inline DISTX_ABI::detail
