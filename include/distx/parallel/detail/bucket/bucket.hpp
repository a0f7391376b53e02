// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <deque>

#include "distx/parallel/detail/bucket/flat_buffer.hpp"
#include "distx/parallel/detail/memory/pool.hpp"
#include "distx/parallel/detail/optimizer/shard_update.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Parameters that are reduced, updated and gathered together.
template <MemorySpace Space>
struct Bucket {
  std::vector<std::size_t> members;  ///< indices of parameters, in reverse order
  bool owned = false;
  bool trained = false;
  std::vector<FlatBuffer<Space>> buffers{};
  std::unique_ptr<ShardUpdate<Space>> update{};  ///< the optimizer of this rank's shard; null where frozen
  std::vector<TrackedMemory<Space>> memory{};    ///< owns the memory of the flat buffers
};

/// The buckets of a training: those that are trained first, in the order of their reductions.
template <MemorySpace Space>
using Buckets = std::deque<Bucket<Space>>;

}  // namespace distx::inline DISTX_ABI::detail
