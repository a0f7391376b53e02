// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <vector>

#include "distx/comm/any_communicator.hpp"
#include "distx/optim/step.hpp"
#include "distx/parallel/segment.hpp"

namespace distx::detail {

/// The update of one piece of a shard in one step; it may overwrite the gradient.
template <MemorySpace Space>
struct PieceStep {
  std::size_t piece = 0;  ///< its index in the shard
  Step step{};
  Segment<Space> segment{};
};

/// An optimizer and its state for one bucket's shard, type-erased.
template <MemorySpace Space>
class ShardUpdate {
 public:
  virtual ~ShardUpdate() = default;
  /// Updates pieces. Collective over `comm` for an optimizer that needs norms.
  /// @param comm  null if this rank has whole parameters
  virtual void update(typename Space::stream stream, const std::vector<PieceStep<Space>>& pieces,
                      AnyCommunicator<Space>* comm, const std::source_location& location) = 0;
  /// Sets the first values of a piece's master weights.
  virtual void adopt(typename Space::stream stream, std::size_t piece, Span<AnyElement, Space> weight) = 0;
};

}  // namespace distx::detail
