// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>

#include "distx/parallel/detail/optimizer/shard_update_of.hpp"
#include "distx/parallel/parameter_options.hpp"

namespace distx::detail {

/// Which parameters an optimizer needs whole on one rank.
enum class TakesWhole { none, matrices, all };

/// An optimizer, its type forgotten: what the training asks of it before there is a shard.
template <MemorySpace Space>
struct AnyOptimizer {
  std::string name;  ///< the same on every rank for the same type
  bool decays;       ///< whether a group can set a decay
  TakesWhole takes_whole;
  std::function<void()> validate;
  std::function<std::unique_ptr<ShardUpdate<Space>>(const ShardOf&, const std::shared_ptr<Workspace<Space>>&,
                                                    const std::shared_ptr<MemoryAccount>&)>
      make_update;

  [[nodiscard]] bool takes(const ParameterOptions& parameter) const noexcept {
    return takes_whole != TakesWhole::none && parameter.rows > 0;
  }
};

/// Refers to the optimizer until the last update was made.
template <MemorySpace Space, ShardableOptimizer Optimizer>
[[nodiscard]] AnyOptimizer<Space> any_optimizer(const Optimizer& optimizer) {
  return {std::to_string(type_fingerprint<Optimizer>()), DecaysWeights<Optimizer>,
          is_mixed<Optimizer>          ? TakesWhole::matrices
          : MatrixOptimizer<Optimizer> ? TakesWhole::all
                                       : TakesWhole::none,
          [&optimizer] { validate_optimizer(optimizer); },
          [&optimizer](const ShardOf& shard, const std::shared_ptr<Workspace<Space>>& workspace,
                       const std::shared_ptr<MemoryAccount>& account) {
            return make_shard_update<Space>(optimizer, shard, workspace, account);
          }};
}

}  // namespace distx::detail
