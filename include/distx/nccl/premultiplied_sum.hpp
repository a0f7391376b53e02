// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>

#include "distx/comm/ops.hpp"

namespace distx::inline DISTX_ABI {

/// The sum of all ranks' operands times a factor, which is the same on every rank; for types with fractions only.
///
/// On every backend. NCCL multiplies the operands, by the factor as the elements' type has it, before it adds them; the
/// others, and NCCL where it shall round once, multiply the sum.
struct PreMultipliedSum {
  static constexpr bool commutative = true;
  double factor = 1;

  template <std::floating_point T>
  constexpr T operator()(T a, T b) const {
    return a + b;
  }
  template <std::floating_point T>
  constexpr T finish(T total, int) const {
    return total * static_cast<T>(factor);
  }
};

}  // namespace distx::inline DISTX_ABI
