// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <numeric>
#include <source_location>
#include <span>
#include <vector>

#include "distx/comm/any_communicator.hpp"
#include "distx/comm/movement.hpp"
#include "distx/tensor/detail/sharding.hpp"

namespace distx::inline DISTX_ABI::layers {

/// The exchange of rows between the ranks along an axis that shards experts: rank i of p has the experts [n*i/p,
/// n*(i+1)/p).
class ExpertDispatch {
 public:
  /// Consecutive rows that this rank received of one rank, for one of its experts.
  struct Block {
    std::size_t expert = 0;  ///< the first one of this rank is 0
    std::size_t begin = 0;
    std::size_t rows = 0;
  };

  /// Tells each rank how many rows it will get, by one all-to-all of a number for each expert and rank. Collective over
  /// `along`.
  /// @param sizes  rows of this rank for each expert, of which there are equally many on every rank; its rows are in
  ///   this order
  /// @throws MismatchError and otherwise as `all_to_all`
  ExpertDispatch(AnyCommunicator<>& along, std::span<const std::uint64_t> sizes,
                 std::source_location location = std::source_location::current())
      : along_(along.share()), sent_(static_cast<std::size_t>(along.size())), received_(sent_.size()) {
    const std::size_t ranks = sent_.size(), experts = sizes.size();
    const auto first = [&](std::size_t rank) { return detail::part_begin(experts, rank, ranks); };
    std::vector<std::size_t> counts(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      counts[rank] = first(rank + 1) - first(rank);
      sent_[rank] = std::accumulate(sizes.data() + first(rank), sizes.data() + first(rank + 1), std::size_t{0});
    }
    const std::size_t own = counts[static_cast<std::size_t>(along.rank())];
    std::vector<std::uint64_t> from(ranks * own);
    const std::vector<std::size_t> equal(ranks, own);
    all_to_all(along, sizes, from, counts, equal, location);
    std::size_t begin = 0;
    for (std::size_t i = 0; i < from.size(); ++i) {
      blocks_.push_back({i % own, begin, from[i]});
      begin += from[i];
      received_[i / own] += from[i];
    }
    rows_ = begin;
  }

  /// Returns the received rows: of each rank, those for each expert, in the order in which that rank had them.
  [[nodiscard]] const std::vector<Block>& blocks() const noexcept { return blocks_; }
  /// Returns the number of received rows.
  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }

  /// Sends this rank's rows to their experts, and returns the rows that this rank's experts get. Collective.
  template <class T>
  [[nodiscard]] Buffer<T> to_experts(Span<const T> rows, std::size_t width,
                                     std::source_location location = std::source_location::current()) const {
    return exchanged(rows, sent_, received_, width, location);
  }
  /// Returns a result for each row that this rank sent, from those of the rows that it received. Collective.
  template <class T>
  [[nodiscard]] Buffer<T> to_tokens(Span<const T> rows, std::size_t width,
                                    std::source_location location = std::source_location::current()) const {
    return exchanged(rows, received_, sent_, width, location);
  }

 private:
  template <class T>
  [[nodiscard]] Buffer<T> exchanged(Span<const T> rows, std::vector<std::size_t> out, std::vector<std::size_t> in,
                                    std::size_t width, const std::source_location& location) const {
    for (auto& count : out) count *= width;
    for (auto& count : in) count *= width;
    Buffer<T> received(std::accumulate(in.begin(), in.end(), std::size_t{0}), uninitialized);
    all_to_all(along_, rows, received.span(), out, in, location);
    return received;
  }

  mutable AnyCommunicator<> along_;
  std::vector<std::size_t> sent_, received_;  // rows by rank
  std::vector<Block> blocks_;
  std::size_t rows_ = 0;
};

}  // namespace distx::inline DISTX_ABI::layers
