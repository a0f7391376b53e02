// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>

#include "distx/parallel/shard_update.hpp"

namespace distx::detail {

/// An optimizer, its type forgotten: what the training asks of it before there is a shard.
template <MemorySpace Space>
struct AnyOptimizer {
  std::string name;  ///< the same on every rank for the same type
  bool decays;       ///< whether a group can set a decay
  std::function<void()> validate;
  /// Makes the update of a shard: the weights' type, whether it keeps master weights, how many elements it has.
  std::function<std::unique_ptr<ShardUpdate<Space>>(ElementType, bool, std::size_t,
                                                    const std::shared_ptr<MemoryAccount>&)>
      make_update;
};

/// Refers to the optimizer until the last update was made.
template <MemorySpace Space, ElementwiseOptimizer Optimizer>
[[nodiscard]] AnyOptimizer<Space> any_optimizer(const Optimizer& optimizer) {
  return {std::to_string(type_fingerprint<Optimizer>()), DecaysWeights<Optimizer>,
          [&optimizer] { validate_optimizer(optimizer); },
          [&optimizer](ElementType type, bool master, std::size_t elements,
                       const std::shared_ptr<MemoryAccount>& account) {
            return make_shard_update<Space>(optimizer, type, master, elements, account);
          }};
}

}  // namespace distx::detail
