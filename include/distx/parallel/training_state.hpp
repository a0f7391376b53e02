// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "distx/core/span.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// The numbers of a training's state, the same on every rank.
struct TrainingCounters {
  std::vector<std::pair<std::string, std::uint64_t>> updates;  ///< steps that have updated each trained parameter
  double loss_scale = 1;
  std::uint64_t finite_steps = 0;   ///< steps in a row without overflow, at this loss scale
  std::uint64_t skipped_steps = 0;  ///< because of a loss or gradient that was not finite
};

/// This rank's part of a parameter that is distributed over a mesh.
struct TensorPart {
  std::vector<std::size_t> shape;  ///< of the whole array
  std::vector<std::size_t> part_begin, part_shape;
  bool first = true;  ///< whether no rank before this one along the other axes has the same part

  /// Returns the number of elements of the whole array.
  [[nodiscard]] std::size_t size() const noexcept {
    std::size_t size = 1;
    for (const std::size_t extent : shape) size *= extent;
    return size;
  }
};

/// A parameter of a MeshParallel.
struct MeshParameter {
  std::string name;
  ElementType type = ElementType::bytes;
  bool empty = false;  ///< on this rank: then the engine does not have it
  TensorPart part{};
  bool counted = true;   ///< in the norm of the gradients, where `part` is first
  bool sharded = false;  ///< whether other ranks may have other parts
  bool trained = true;
  std::size_t rows = 0;               ///< of the whole matrix; 0 unless it is declared as one
  std::vector<std::string> arrays{};  ///< of the optimizer
};

}  // namespace detail

/// All that a training needs to be resumed between two steps, besides the user's own state; returned by
/// `DataParallel::state` and `MeshParallel::state`.
///
/// Every rank lists the same arrays in the same order: in the order of the parameters, each followed by the optimizer's
/// arrays. Spans are borrowed, and valid until the next step or the end of the training.
template <MemorySpace Space>
struct TrainingState {
  /// A weight, an array that the optimizer keeps for it, or a buffer.
  struct Array {
    /// The name of the parameter or buffer. An array of the optimizer is named `optim.state.PARAMETER.ARRAY`, such as
    /// `optim.state.conv1.weight.exp_avg`; the master weights of Precision are the array `master`, and
    /// ExponentialAverages `exponential_average`, `exponential_average2`, … in the order in which they were made.
    std::string name;
    /// The shape of the whole array: `.shape` of the parameter, {rows, columns} if it has `.rows`, the extents of a
    /// TensorParameter, else {size}.
    std::vector<std::size_t> shape;
    std::size_t offset = 0;            ///< of the first of `values` in this rank's part of the array, row-major
    Span<AnyElement, Space> values{};  ///< the elements that this rank holds; they may be none
    /// `values.subspan(share_begin, share_size)` is this rank's share: the shares of all ranks partition the whole
    /// array.
    std::size_t share_begin = 0;
    std::size_t share_size = 0;
    /// This rank's part of the array: the box of `part_shape` from index `part_begin` on. The whole array, except on a
    /// mesh that shards it.
    std::vector<std::size_t> part_begin{};
    std::vector<std::size_t> part_shape{};
  };

  std::vector<Array> arrays;
  detail::TrainingCounters counters;  ///< numbers of updates and the loss scale
};

}  // namespace distx::inline DISTX_ABI
