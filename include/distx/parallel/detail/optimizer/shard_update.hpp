// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <vector>

#include "distx/comm/any_communicator.hpp"
#include "distx/optim/step.hpp"
#include "distx/parallel/segment.hpp"

namespace distx::detail {

/// What is to be done with one piece of a shard in a step. The gradient's memory may be used for other things.
template <MemorySpace Space>
struct PieceStep {
  std::size_t piece = 0;  ///< its number in the shard
  Step step{};
  Segment<Space> segment{};
};

/// An optimizer and its state for one bucket's shard, both types forgotten.
template <MemorySpace Space>
class ShardUpdate {
 public:
  virtual ~ShardUpdate() = default;
  /// Updates pieces. An optimizer that needs norms makes it collective, over `comm`, which is null where this rank has
  /// whole parameters.
  virtual void update(typename Space::stream stream, const std::vector<PieceStep<Space>>& pieces,
                      AnyCommunicator<Space>* comm, const std::source_location& location) = 0;
  /// The values that a piece begins with.
  virtual void adopt(typename Space::stream stream, std::size_t piece, Span<AnyElement, Space> weight) = 0;
};

}  // namespace distx::detail
