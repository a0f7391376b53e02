// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstddef>

#include "distx/comm/any_communicator.hpp"
#include "distx/comm/detail/host_values.hpp"
#include "distx/parallel/training_state.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The elements of an array from `begin` on.
struct StateRange {
  std::size_t begin = 0;
  std::size_t size = 0;

  [[nodiscard]] friend StateRange operator&(const StateRange& a, const StateRange& b) noexcept {
    const std::size_t first = std::max(a.begin, b.begin), last = std::min(a.begin + a.size, b.begin + b.size);
    return {first, last > first ? last - first : 0};
  }
};

/// The elements that each rank has of the arrays of a training's state.
class StateLayout {
 public:
  /// Collects what all ranks hold, or their shares, which partition the arrays. Collective.
  template <MemorySpace Space>
  StateLayout(AnyCommunicator<Space>& comm, const TrainingState<Space>& state, bool shares,
              const std::source_location& location)
      : StateLayout(state, static_cast<std::size_t>(comm.size()), {}) {
    std::vector<std::size_t> mine;
    for (const auto& array : state.arrays) {
      mine.push_back(array.offset + (shares ? array.share_begin : 0));
      mine.push_back(shares ? array.share_size : array.values.size());
    }
    numbers_.assign(mine.size() * ranks_, 0);
    if (ranks_ == 1)
      numbers_ = std::move(mine);
    else if (!mine.empty())
      all_gather_values(comm, Span<const std::size_t>(mine), Span<std::size_t>(numbers_), location);
  }

  /// Describes what other ranks had of the same arrays. @param numbers  as `numbers()` returns them
  template <MemorySpace Space>
  StateLayout(const TrainingState<Space>& state, std::size_t ranks, std::vector<std::size_t> numbers)
      : ranks_(ranks), numbers_(std::move(numbers)) {
    for (const auto& array : state.arrays) {
      names_.push_back(array.name);
      widths_.push_back(array.values.element_bytes());
    }
  }

  /// Returns begin and size of each range, by rank and array.
  [[nodiscard]] const std::vector<std::size_t>& numbers() const noexcept { return numbers_; }
  [[nodiscard]] std::size_t ranks() const noexcept { return ranks_; }
  [[nodiscard]] std::size_t arrays() const noexcept { return names_.size(); }
  [[nodiscard]] const std::string& name(std::size_t array) const noexcept { return names_[array]; }
  /// Returns the bytes of one element.
  [[nodiscard]] std::size_t width(std::size_t array) const noexcept { return widths_[array]; }
  [[nodiscard]] StateRange range(std::size_t rank, std::size_t array) const noexcept {
    const std::size_t at = 2 * (rank * arrays() + array);
    return {numbers_[at], numbers_[at + 1]};
  }
  /// Returns the bytes that a rank has of the arrays before `end`.
  [[nodiscard]] std::size_t bytes_before(std::size_t rank, std::size_t end) const noexcept {
    std::size_t bytes = 0;
    for (std::size_t array = 0; array < end; ++array) bytes += range(rank, array).size * width(array);
    return bytes;
  }
  /// Returns the bytes that a rank has.
  [[nodiscard]] std::size_t bytes(std::size_t rank) const noexcept { return bytes_before(rank, arrays()); }

 private:
  std::size_t ranks_;
  std::vector<std::string> names_;
  std::vector<std::size_t> widths_;
  std::vector<std::size_t> numbers_;
};

}  // namespace distx::inline DISTX_ABI::detail
