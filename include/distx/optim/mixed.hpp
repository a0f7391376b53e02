// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>

#include "distx/optim/matrix_optimizer.hpp"
#include "distx/optim/norm_optimizer.hpp"

namespace distx {

/// One optimizer for the parameters that are declared as matrices, another for all else: `Mixed{Muon{}, AdamW{}}`.
///
/// Both take the step's learning rate, times the scale of the parameter's group: groups tell them apart.
template <MatrixOptimizer Matrices, ElementwiseOptimizer Others>
struct Mixed {
  Matrices matrices{};
  Others others{};

  /// Enough for either; the one that needs fewer leaves the rest alone.
  static constexpr std::size_t states = std::max<std::size_t>(Matrices::states, Others::states);
  static constexpr bool decays_weights = DecaysWeights<Matrices> && DecaysWeights<Others>;

  void validate() const {
    detail::validate_optimizer(matrices);
    detail::validate_optimizer(others);
  }
};

template <class Matrices, class Others>
Mixed(Matrices, Others) -> Mixed<Matrices, Others>;

namespace detail {

template <class O>
inline constexpr bool is_mixed = false;
template <class Matrices, class Others>
inline constexpr bool is_mixed<Mixed<Matrices, Others>> = true;

}  // namespace detail

/// An optimizer whose state can be shared out: element by element, or with its parameters whole. It is of one kind.
template <class O>
concept ShardableOptimizer =
    int{ElementwiseOptimizer<O>} + int{NormOptimizer<O>} + int{MatrixOptimizer<O>} + int{detail::is_mixed<O>} == 1;

}  // namespace distx
