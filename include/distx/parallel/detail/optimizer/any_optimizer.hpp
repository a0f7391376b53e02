// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>

#include "distx/parallel/detail/optimizer/describe_optimizer.hpp"
#include "distx/parallel/detail/optimizer/shard_update_of.hpp"
#include "distx/parallel/parameter_options.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The parameters that an optimizer needs whole on one rank.
enum class TakesWhole { none, matrices, all };

/// A type-erased optimizer, before there are shards.
template <MemorySpace Space>
struct AnyOptimizer {
  std::string description;  ///< its type and hyperparameters
  bool decays;              ///< whether a group can set a decay
  TakesWhole takes_whole;
  std::function<void()> validate;
  std::function<std::unique_ptr<ShardUpdate<Space>>(
      const ShardDescription&, const std::shared_ptr<OptimizerWorkspace<Space>>&, const StateAllocator<Space>&)>
      make_update;

  [[nodiscard]] bool takes(const ParameterOptions& parameter) const noexcept {
    return takes_whole != TakesWhole::none && parameter.rows > 0;
  }
};

/// Borrows the optimizer until the last update is made.
template <MemorySpace Space, ShardableOptimizer Optimizer>
[[nodiscard]] AnyOptimizer<Space> any_optimizer(const Optimizer& optimizer) {
  return {describe_optimizer(optimizer), DecaysWeights<Optimizer>,
          is_mixed<Optimizer>          ? TakesWhole::matrices
          : MatrixOptimizer<Optimizer> ? TakesWhole::all
                                       : TakesWhole::none,
          [&optimizer] { validate_optimizer(optimizer); },
          [&optimizer](const ShardDescription& shard, const std::shared_ptr<OptimizerWorkspace<Space>>& workspace,
                       const StateAllocator<Space>& allocate) {
            return make_shard_update<Space>(optimizer, shard, workspace, allocate);
          }};
}

}  // namespace distx::inline DISTX_ABI::detail
