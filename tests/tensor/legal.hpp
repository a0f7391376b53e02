// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <distx/tensor/ops/axis_placement.hpp>

#include <array>
#include <utility>

namespace cases {

/// The combinations of placements on one axis that a rule takes, as numbers: a digit for each operand.
template <class Rule, std::size_t... Ranks>
struct Legal {
  static constexpr std::array<std::size_t, sizeof...(Ranks)> ranks{Ranks...};
  static constexpr std::size_t all = ((3 + Ranks) * ...);

  /// Of one operand: 0 replicated, 1 Partial, 2 Partial with Max, then the shards.
  static constexpr std::size_t digit(std::size_t code, std::size_t operand) {
    for (std::size_t before = 0; before < operand; ++before) code /= 3 + ranks[before];
    return code % (3 + ranks[operand]);
  }
  static constexpr distx::rules::AxisPlacement place(std::size_t code, std::size_t operand) {
    const std::size_t d = digit(code, operand);
    distx::rules::AxisPlacement place = d == 0   ? distx::rules::replicated
                                        : d == 1 ? distx::rules::partial_sum
                                        : d == 2 ? distx::rules::partial_max
                                                 : distx::rules::shard(d - 3);
    place.dimensions = ranks[operand];
    return place;
  }
  static constexpr bool takes(std::size_t code) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return Rule::on(place(code, I)...).kind != distx::rules::AxisPlacement::Kind::unsupported;
    }(std::make_index_sequence<sizeof...(Ranks)>());
  }
  static constexpr std::size_t count = [] {
    std::size_t found = 0;
    for (std::size_t code = 0; code < all; ++code) found += takes(code) ? 1 : 0;
    return found;
  }();
  static constexpr std::array<std::size_t, count> codes = [] {
    std::array<std::size_t, count> found{};
    for (std::size_t code = 0, next = 0; code < all; ++code)
      if (takes(code)) found[next++] = code;
    return found;
  }();
};

}  // namespace cases
