// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/any_communicator.hpp"
#include "distx/comm/detail/host_values.hpp"
#include "distx/memory/fixed_point.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Euclidean norms of several vectors that are sharded over the ranks: the same bits for every partition.
///
/// Every rank calls `look` for its parts, all ranks `agree` on the largest magnitudes, every rank calls `add` for the
/// same parts, and all ranks `sum`. `agree` and `sum` are collective over `comm`; null means that this rank has all.
template <MemorySpace Space>
class SharedNorms {
 public:
  using stream = typename Space::stream;

  explicit SharedNorms(std::size_t count) : largest_(count), parts_(2 * count) {}

  template <FloatingElement T>
  void look(stream after, std::size_t i, Span<T, Space> part) {
    largest_[i] = std::max(largest_[i], largest_magnitude(after, part));
  }
  void agree(AnyCommunicator<Space>* comm, const std::source_location& location) {
    if (comm != nullptr) all_reduce_values(*comm, Span<double>(largest_), max, location);
  }
  template <FloatingElement T>
  void add(stream after, std::size_t i, Span<T, Space> part) {
    if (!counts(i)) return;
    FixedPointSum total{parts_[2 * i], parts_[2 * i + 1]};
    total += fixed_point_squares(after, part, FixedPointSum::exponent_for(largest_[i]));
    parts_[2 * i] = total.high;
    parts_[2 * i + 1] = total.low;
  }
  void sum(AnyCommunicator<Space>* comm, const std::source_location& location) {
    if (comm != nullptr) all_reduce_values(*comm, Span<std::uint64_t>(parts_), distx::sum, location);
  }
  /// Returns infinity if an element is infinite or not a number.
  [[nodiscard]] double norm(std::size_t i) const {
    if (!counts(i)) return largest_[i];
    FixedPointSum total;
    total += {parts_[2 * i], parts_[2 * i + 1]};
    return total.root(FixedPointSum::exponent_for(largest_[i]));
  }

 private:
  [[nodiscard]] bool counts(std::size_t i) const noexcept { return largest_[i] > 0 && is_finite(largest_[i]); }

  std::vector<double> largest_;
  std::vector<std::uint64_t> parts_;  // high and low of each
};

}  // namespace distx::inline DISTX_ABI::detail
