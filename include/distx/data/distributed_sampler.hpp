// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <span>
#include <string>

#include "distx/core/error.hpp"
#include "distx/data/detail/permutation.hpp"

namespace distx {

/// What becomes of the samples that do not fill a last global batch.
enum class Remainder {
  pad,   ///< they are filled up with the epoch's first samples
  drop,  ///< they are left out of this epoch
};

/// What may be set of a DistributedSampler; the same on every rank.
struct SamplerOptions {
  std::size_t batch_size = 1;  ///< of one rank
  bool shuffle = true;         ///< a new order in each epoch
  std::uint64_t seed = 0;
  Remainder remainder = Remainder::pad;
};

/// Deals the samples of a data set out to the ranks, batch by batch.
///
/// An epoch is one sequence of samples, the same for any number of ranks, cut into global batches of size() *
/// batch_size; of each, rank r takes the samples r, r + size(), r + 2 size()…
/// @post every rank has as many batches, all of batch_size; the ranks' k-th batches together are the k-th batch of one
///       rank with batches of size() * batch_size; with `pad` the union over ranks and batches is the data set, with
///       `drop` no sample comes twice. No communication.
class DistributedSampler {
 public:
  /// For this rank of a communicator, or of anything else with `rank()` and `size()`.
  template <class C>
    requires requires(const C& comm) {
      { comm.rank() } -> std::convertible_to<int>;
      { comm.size() } -> std::convertible_to<int>;
    }
  DistributedSampler(std::size_t samples, const C& comm, const SamplerOptions& options = {})
      : DistributedSampler(samples, comm.rank(), comm.size(), options) {}

  /// @throws DataError where there are more ranks than samples, or a batch is larger than a rank's share of them
  DistributedSampler(std::size_t samples, int rank, int size, const SamplerOptions& options = {})
      : samples_(samples),
        rank_(static_cast<std::size_t>(rank)),
        ranks_(static_cast<std::size_t>(size)),
        options_(options) {
    const ErrorContext context{.operation = "DistributedSampler", .rank = rank, .size = size};
    if (size < 1 || rank < 0 || rank >= size)
      throw MismatchError("rank " + std::to_string(rank) + " of " + std::to_string(size) + " is no rank",
                          {.operation = "DistributedSampler"});
    if (options.batch_size == 0) throw DataError("batch_size is 0: a batch has at least one sample", context);
    if (samples < ranks_)
      throw DataError(
          "there are " + std::to_string(samples) + " samples for " + std::to_string(size) + " ranks: run fewer ranks",
          context);
    const std::size_t share = options.remainder == Remainder::drop ? samples / ranks_ : (samples + ranks_ - 1) / ranks_;
    if (options.batch_size > share)
      throw DataError("batch_size is " + std::to_string(options.batch_size) + ", and a rank's share of " +
                          std::to_string(samples) + " samples is " + std::to_string(share) +
                          ": make the batches smaller or run fewer ranks",
                      context);
    const std::size_t global = options.batch_size * ranks_;
    batches_ = options.remainder == Remainder::drop ? samples / global : (samples + global - 1) / global;
  }

  /// This rank's samples of an epoch, batch after batch: indices below `samples()`.
  [[nodiscard]] std::vector<std::size_t> epoch(std::uint64_t number) const {
    std::vector<std::size_t> order;
    if (options_.shuffle) order = detail::permutation(samples_, options_.seed, number);
    std::vector<std::size_t> mine(size());
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const std::size_t place = (i * ranks_ + rank_) % samples_;
      mine[i] = options_.shuffle ? order[place] : place;
    }
    return mine;
  }

  /// This rank's samples in an epoch; the same on every rank.
  [[nodiscard]] std::size_t size() const noexcept { return batches_ * options_.batch_size; }
  [[nodiscard]] std::size_t batches() const noexcept { return batches_; }
  [[nodiscard]] std::size_t batch_size() const noexcept { return options_.batch_size; }
  /// Of the data set.
  [[nodiscard]] std::size_t samples() const noexcept { return samples_; }

 private:
  std::size_t samples_;
  std::size_t rank_;
  std::size_t ranks_;
  SamplerOptions options_;
  std::size_t batches_ = 0;
};

}  // namespace distx
