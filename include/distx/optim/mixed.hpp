// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <vector>

#include "distx/optim/two_pass_optimizer.hpp"

namespace distx::inline DISTX_ABI {

/// Two optimizers, one for the parameters declared as matrices and one for all others: `Mixed{Muon{}, AdamW{}}`.
///
/// Both use the step's learning rate; give each kind of parameter a group with its own scale if they need different
/// ones.
template <MatrixOptimizer Matrices, ElementwiseOptimizer Others>
struct Mixed {
  Matrices matrices{};
  Others others{};

  /// Values kept for each weight: those of the optimizer that needs more.
  static constexpr std::size_t states = std::max<std::size_t>(Matrices::states, Others::states);
  static constexpr bool decays_weights = detail::DecaysWeights<Matrices> && detail::DecaysWeights<Others>;

  /// @throws InvalidArgument if one of the two has invalid hyperparameters
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

/// Returns the names of the arrays that an optimizer keeps for each parameter, or each one declared as a matrix.
template <class O>
[[nodiscard]] std::vector<std::string> state_names(bool matrix) {
  if constexpr (is_mixed<O>) {
    return matrix ? state_names<decltype(O::matrices)>(true) : state_names<decltype(O::others)>(false);
  } else {
    std::vector<std::string> names;
    for (std::size_t k = 0; k < O::states; ++k) names.push_back(state_name<O>(k));
    return names;
  }
}

}  // namespace detail

/// An optimizer whose state can be sharded: an ElementwiseOptimizer, a NormOptimizer, a MatrixOptimizer or a Mixed, and
/// only one of them.
template <class O>
concept ShardableOptimizer =
    int{ElementwiseOptimizer<O>} + int{NormOptimizer<O>} + int{MatrixOptimizer<O>} + int{detail::is_mixed<O>} == 1;

}  // namespace distx::inline DISTX_ABI
