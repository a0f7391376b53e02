// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <span>
#include <string>
#include <vector>

#include "distx/comm/any_communicator.hpp"
#include "distx/comm/detail/host_values.hpp"
#include "distx/comm/detail/in_order.hpp"
#include "distx/memory/fixed_point.hpp"
#include "distx/optim/detail/update_piece.hpp"
#include "distx/parallel/fragment.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Euclidean norms of several vectors that are sharded over the ranks: the same bits for every partition.
///
/// Every rank calls `look` for its parts, all ranks `agree` on the largest magnitudes, every rank calls `add` for the
/// same parts, and all ranks `sum`. `agree` and `sum` are collective over `comm`; null means that this rank has all.
/// In other memory than the host's, the parts are looked at and added when the ranks agree and sum: by one kernel for
/// many of them, for which the host waits.
template <MemorySpace Space>
class SharedNorms {
 public:
  using stream = typename Space::stream;

  explicit SharedNorms(std::size_t count) : largest_(count), parts_(2 * count) {}

  template <FloatingElement T>
  void look(stream after, std::size_t i, Span<T, Space> part) {
    if constexpr (HostAccessible<Space>)
      largest_[i] = std::max(largest_[i], largest_magnitude(after, part));
    else
      pieces_.push_back({part, i});
  }
  void agree([[maybe_unused]] stream after, AnyCommunicator<Space>* comm, const std::source_location& location) {
    if constexpr (!HostAccessible<Space>)
      on_pieces(after, largest_, [&](std::span<const ReducedPiece<Space>> pieces, Span<double, Space> largest) {
        largest_magnitudes(after, pieces, largest);
      });
    if (comm != nullptr) all_reduce_values(*comm, Span<double>(largest_), max, location);
  }
  template <FloatingElement T>
  void add(stream after, std::size_t i, Span<T, Space> part) {
    if (!counts(i)) return;
    if constexpr (HostAccessible<Space>) {
      FixedPointSum total{parts_[2 * i], parts_[2 * i + 1]};
      total += fixed_point_squares(after, part, FixedPointSum::exponent_for(largest_[i]));
      parts_[2 * i] = total.high;
      parts_[2 * i + 1] = total.low;
    } else {
      pieces_.push_back({part, i});
    }
  }
  void sum([[maybe_unused]] stream after, AnyCommunicator<Space>* comm, const std::source_location& location) {
    if constexpr (!HostAccessible<Space>)
      on_pieces(after, parts_, [&](std::span<const ReducedPiece<Space>> pieces, Span<std::uint64_t, Space> parts) {
        const auto largest = buffer_on<double, Space>(after, largest_.size(), uninitialized);
        copy(after, largest.span(), Span<const double>(largest_));
        fixed_point_squares_of_each(after, pieces, largest.span(), parts);
      });
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
  /// Calls f(pieces, numbers) with zeros in the memory of the pieces, reads what they have become, and ends the list.
  template <class T, class F>
  void on_pieces(stream after, std::vector<T>& numbers, F&& f) {
    if (pieces_.empty()) return;
    const auto there = buffer_on<T, Space>(after, numbers.size());
    f(std::span<const ReducedPiece<Space>>(pieces_), there.span());
    copy(after, Span<T>(numbers), Span<const T, Space>(there));
    after.synchronize();
    pieces_.clear();
  }
  [[nodiscard]] bool counts(std::size_t i) const noexcept { return largest_[i] > 0 && is_finite(largest_[i]); }

  std::vector<double> largest_;
  std::vector<std::uint64_t> parts_;           // high and low of each
  std::vector<ReducedPiece<Space>> pieces_{};  // not in the host's memory, with the numbers of their norms
};

/// The update of one fragment of a shard in one step; it may overwrite the gradient.
template <MemorySpace Space>
struct FragmentStep {
  std::size_t index = 0;  ///< in the shard
  Step step{};
  Fragment<Space> fragment{};
};
template <MemorySpace Space>
using FragmentSteps = std::vector<FragmentStep<Space>>;

/// The phases of an update by norms of whole weights: after `direct` the ranks agree on the norms' largest elements,
/// after `add` they sum their parts.
enum class NormPhase { direct, add, apply };

/// The number of a parameter's norms, and whether this rank is the one that adds its part of them.
struct NormNumber {
  std::size_t number = 0;
  bool adds = true;
};

/// An optimizer and its state for one bucket's shard, type-erased.
template <MemorySpace Space>
class ShardUpdate {
 public:
  virtual ~ShardUpdate() = default;
  /// Updates fragments. Collective over `comm` for an optimizer that needs norms.
  /// @param factor  multiplies the gradients
  /// @param coefficients  if not null, where kernels read what `write_coefficients` has written for these fragments
  /// @param comm  null if this rank has whole parameters
  virtual void update(typename Space::stream stream, const FragmentSteps<Space>& fragments,
                      const GradientFactor& factor, const std::byte* coefficients, AnyCommunicator<Space>* comm,
                      const std::source_location& location) = 0;
  /// Makes a phase of an update by norms that several shards share; does nothing for other optimizers.
  /// @param numbers  of the parameters of `fragments`; if there are none, their indices in the bucket
  virtual void update_by_norms(NormPhase phase, typename Space::stream stream, const FragmentSteps<Space>& fragments,
                               const GradientFactor& factor, SharedNorms<Space>& norms,
                               const std::vector<NormNumber>& numbers) = 0;
  /// Makes the first pass over a mesh's part of a matrix; does nothing for other optimizers.
  /// @return its direction, valid until the next call
  virtual Span<AnyElement, Space> direct(typename Space::stream stream, const FragmentStep<Space>& fragment,
                                         const GradientFactor& factor) = 0;
  /// Makes the second pass: updates the part along the direction that is transformed, times `scale_by`.
  virtual void apply(typename Space::stream stream, const FragmentStep<Space>& fragment,
                     Span<AnyElement, Space> direction, double scale_by) = 0;
  /// Returns whether `update_by_operands` may be called instead, on the host.
  [[nodiscard]] virtual bool takes_operands() const noexcept = 0;
  /// Averages all ranks' gradients of a part of a fragment and updates that part, in one pass; stores no average.
  /// @param begin  of the part, in elements of the fragment
  /// @param gradients  where each rank's gradients of the part begin, in rank order
  virtual void update_by_operands(const FragmentStep<Space>& fragment, std::size_t begin,
                                  std::span<const void* const> gradients, std::size_t count) = 0;
  /// Returns the bytes of the optimizer's coefficients for one fragment; 0 if the host takes part in updates.
  [[nodiscard]] virtual std::size_t coefficient_bytes() const noexcept = 0;
  /// Writes the coefficients of fragments to the host's memory.
  virtual void write_coefficients(const FragmentSteps<Space>& fragments, std::byte* to) const = 0;
  /// Sets the first values of a fragment's master weights.
  virtual void adopt(typename Space::stream stream, std::size_t fragment, Span<AnyElement, Space> weight) = 0;
  /// Returns the names of the arrays that are kept for each weight: `master` first if there are master weights.
  /// @param has_rows  whether the parameter is declared as a matrix
  [[nodiscard]] virtual std::vector<std::string> array_names(bool has_rows) const = 0;
  /// Returns the element type of these arrays.
  [[nodiscard]] virtual ElementType array_type() const noexcept = 0;
  /// Returns one of these arrays of a fragment.
  [[nodiscard]] virtual Span<AnyElement, Space> array(std::size_t fragment, std::size_t k) const noexcept = 0;
};

}  // namespace distx::inline DISTX_ABI::detail
