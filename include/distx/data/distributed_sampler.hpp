// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <span>
#include <string>

#include "distx/core/error.hpp"
#include "distx/data/detail/permutation.hpp"

namespace distx {

/// What happens to the samples that do not fill a last global batch.
enum class Remainder {
  pad,   ///< the batch is filled with the epoch's first samples
  drop,  ///< they are left out of this epoch
};

/// Options of a DistributedSampler, the same on every rank.
struct SamplerOptions {
  std::size_t batch_size = 1;  ///< of one rank
  bool shuffle = true;         ///< a new order in each epoch
  std::uint64_t seed = 0;
  Remainder remainder = Remainder::pad;
};

/// Assigns the samples of a data set to ranks, batch by batch, without communication.
///
/// An epoch is one sequence of samples, the same for any number of ranks n, partitioned into global batches of
/// n * batch_size; of each, rank r takes the samples r, r + n, r + 2n, ….
/// @post Every rank has the same number of batches, each of batch_size. The k-th batches of all ranks together are the
///       k-th batch of a single rank with batches of n * batch_size. With `pad` every sample occurs, with `drop` no
///       sample occurs twice.
class DistributedSampler {
 public:
  /// Samples for this rank of a communicator, a connector, or anything else with `rank()` and `size()`.
  /// @throws InvalidArgument, DataError as below
  template <class C>
    requires requires(const C& comm) {
      { comm.rank() } -> std::convertible_to<int>;
      { comm.size() } -> std::convertible_to<int>;
    }
  DistributedSampler(std::size_t samples, const C& comm, const SamplerOptions& options = {})
      : DistributedSampler(samples, comm.rank(), comm.size(), options) {}

  /// @param samples  of the data set
  /// @throws InvalidArgument unless rank is in [0, size) and batch_size is at least 1
  /// @throws DataError if there are more ranks than samples, or a batch is larger than a rank's samples
  DistributedSampler(std::size_t samples, int rank, int size, const SamplerOptions& options = {})
      : samples_(samples),
        rank_(static_cast<std::size_t>(rank)),
        ranks_(static_cast<std::size_t>(size)),
        options_(options) {
    const ErrorContext context{.operation = "DistributedSampler", .rank = rank, .size = size};
    if (size < 1 || rank < 0 || rank >= size)
      throw InvalidArgument("invalid rank " + std::to_string(rank) + ": must be in [0, " + std::to_string(size) + ")",
                            {.operation = "DistributedSampler"});
    if (options.batch_size == 0) throw InvalidArgument("invalid batch_size 0: must be at least 1", context);
    if (samples < ranks_)
      throw DataError(
          "too few samples: " + std::to_string(samples) + " for " + std::to_string(size) + " ranks; use fewer ranks",
          context);
    const std::size_t share = options.remainder == Remainder::drop ? samples / ranks_ : (samples + ranks_ - 1) / ranks_;
    if (options.batch_size > share)
      throw DataError("batch_size " + std::to_string(options.batch_size) + " exceeds the " + std::to_string(share) +
                          " of " + std::to_string(samples) +
                          " samples that a rank has; use smaller batches or fewer ranks",
                      context);
    const std::size_t global = options.batch_size * ranks_;
    batches_ = options.remainder == Remainder::drop ? samples / global : (samples + global - 1) / global;
  }

  /// Returns the indices of this rank's samples in an epoch, batch after batch; each is below `samples()`.
  [[nodiscard]] std::vector<std::size_t> epoch(std::uint64_t number) const {
    std::vector<std::size_t> order;
    if (options_.shuffle) order = detail::permutation(samples_, options_.seed, number);
    std::vector<std::size_t> mine(size());
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const std::size_t index = (i * ranks_ + rank_) % samples_;
      mine[i] = options_.shuffle ? order[index] : index;
    }
    return mine;
  }

  /// Returns the number of samples that a rank has in an epoch; the same on every rank.
  [[nodiscard]] std::size_t size() const noexcept { return batches_ * options_.batch_size; }
  /// Returns the number of batches that a rank has in an epoch.
  [[nodiscard]] std::size_t batches() const noexcept { return batches_; }
  /// Returns the samples in a batch of one rank.
  [[nodiscard]] std::size_t batch_size() const noexcept { return options_.batch_size; }
  /// Returns the number of samples of the data set.
  [[nodiscard]] std::size_t samples() const noexcept { return samples_; }

 private:
  std::size_t samples_;
  std::size_t rank_;
  std::size_t ranks_;
  SamplerOptions options_;
  std::size_t batches_ = 0;
};

}  // namespace distx
