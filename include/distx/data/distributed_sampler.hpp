// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "distx/core/error.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// Returns the numbers 0 to n - 1 in an order that depends on seed and epoch only, the same on every platform.
///
/// Fisher-Yates shuffle on the raw output of std::mt19937_64, which the standard specifies, unlike that of its
/// distributions and of std::shuffle.
[[nodiscard]] std::vector<std::size_t> permutation(std::size_t n, std::uint64_t seed, std::uint64_t epoch);

}  // namespace detail

/// The policy for samples that do not fill the last global batch.
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
  /// Whether rank r takes the r-th block of each global batch, instead of every n-th sample: with the policy
  /// Reproducible and batches of V / n micro-batches, a micro-batch then has the same samples on any number of ranks.
  bool blocks = false;
};

/// Assigns the samples of a data set to ranks, batch by batch, without communication.
///
/// An epoch is one sequence of samples, the same for any number of ranks n, partitioned into global batches of
/// n * batch_size; of each, rank r takes the samples r, r + n, r + 2n, …, or, with `.blocks`, batch_size adjacent ones.
/// The rest of an epoch, from any Position on, is partitioned in the same way, also among another number of ranks or
/// into other batches.
/// @post Every rank has the same number of batches, each of batch_size. The k-th batches of all ranks together are the
///       k-th batch of a single rank with batches of n * batch_size. With `pad` every sample occurs, with `drop` no
///       sample occurs twice.
class DistributedSampler {
 public:
  /// A position in the sequence of samples of all epochs, the same on every rank. A program saves it to resume in
  /// mid-epoch. `position` and `after` return valid ones.
  struct Position {
    std::uint64_t epoch = 0;
    std::uint64_t taken = 0;    ///< samples of this epoch that all ranks together have taken; below `samples`
    std::uint64_t seed = 0;     ///< of the sampler
    std::uint64_t samples = 0;  ///< of the data set

    /// Returns a line of text, such as "epoch=2 taken=640 seed=1 samples=60000".
    [[nodiscard]] std::string to_string() const {
      return "epoch=" + std::to_string(epoch) + " taken=" + std::to_string(taken) + " seed=" + std::to_string(seed) +
             " samples=" + std::to_string(samples);
    }
    /// Returns the position of a line that `to_string` has returned.
    /// @throws DataError for any other text
    [[nodiscard]] static Position from_string(const std::string& text) {
      const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
      Position found;
      const char *at = text.data(), *const end = at + text.size();
      for (auto* const number : {&found.epoch, &found.taken, &found.seed, &found.samples})
        at = std::from_chars(std::find_if(at, end, is_digit), end, *number).ptr;
      if (found.to_string() == text) return found;
      throw DataError("'" + text + "' is not a position; pass what Position::to_string has returned",
                      {.operation = "DistributedSampler"});
    }
    friend bool operator==(const Position&, const Position&) = default;
  };

  /// Samples for this rank of a communicator, a connector, or anything else with `rank()` and `size()`. A communicator
  /// is revoked by a DataLoader that is stuck; it need not exist then.
  /// @throws InvalidArgument, DataError as below
  template <class C>
    requires requires(const C& comm) {
      { comm.rank() } -> std::convertible_to<int>;
      { comm.size() } -> std::convertible_to<int>;
    }
  DistributedSampler(std::size_t samples, const C& comm, const SamplerOptions& options = {})
      : DistributedSampler(samples, comm.rank(), comm.size(), options) {
    if constexpr (requires { comm.revoker(); }) revoker_ = comm.revoker();
  }

  /// @param samples  of the data set
  /// @throws InvalidArgument unless rank is in [0, size) and batch_size is at least 1
  /// @throws DataError if there are more ranks than samples, or a batch is larger than a rank's samples
  DistributedSampler(std::size_t samples, int rank, int size, const SamplerOptions& options = {})
      : samples_(samples),
        rank_(static_cast<std::size_t>(rank)),
        ranks_(static_cast<std::size_t>(size)),
        options_(options) {
    if (size < 1 || rank < 0 || rank >= size)
      throw InvalidArgument("invalid rank " + std::to_string(rank) + ": must be in [0, " + std::to_string(size) + ")",
                            {.operation = "DistributedSampler"});
    if (options.batch_size == 0) throw InvalidArgument("invalid batch_size 0: must be at least 1", context());
    if (samples < ranks_)
      throw DataError(
          "too few samples: " + std::to_string(samples) + " for " + std::to_string(size) + " ranks; use fewer ranks",
          context());
    const std::size_t share = options.remainder == Remainder::drop ? samples / ranks_ : (samples + ranks_ - 1) / ranks_;
    if (options.batch_size > share)
      throw DataError("batch_size " + std::to_string(options.batch_size) + " exceeds the " + std::to_string(share) +
                          " of " + std::to_string(samples) +
                          " samples that a rank has; use smaller batches or fewer ranks",
                      context());
    batches_ = batches_of(samples);
  }

  /// Returns the indices of this rank's samples in an epoch, batch after batch; each is below `samples()`.
  [[nodiscard]] std::vector<std::size_t> epoch(std::uint64_t number) const { return epoch(position(number)); }
  /// Returns the indices of this rank's samples in the rest of an epoch, batch after batch.
  ///
  /// The samples from `from` on are partitioned as those of a whole epoch: every rank has the same number of batches;
  /// with `pad` each of them occurs, and only those that fill the last batch, the epoch's first samples, are taken
  /// again; with `drop` none is taken again, and fewer than one global batch are left out. With the number of ranks and
  /// the batch size that led to `from`, these are the batches of a run that was not interrupted.
  /// @param from  of a sampler with the same samples, seed and `shuffle`
  /// @throws DataError if its seed, its number of samples or its place is invalid for this sampler
  [[nodiscard]] std::vector<std::size_t> epoch(const Position& from) const {
    const std::size_t taken = check(from);
    std::vector<std::size_t> order;
    if (options_.shuffle) order = detail::permutation(samples_, options_.seed, from.epoch);
    std::vector<std::size_t> mine(batches_of(samples_ - taken) * options_.batch_size);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const std::size_t size = options_.batch_size;
      const std::size_t at = options_.blocks ? i / size * global_batch() + rank_ * size + i % size : i * ranks_ + rank_;
      const std::size_t index = (taken + at) % samples_;
      mine[i] = options_.shuffle ? order[index] : index;
    }
    return mine;
  }

  /// Returns the position at the beginning of an epoch.
  [[nodiscard]] Position position(std::uint64_t epoch) const noexcept { return {epoch, 0, options_.seed, samples_}; }
  /// Returns the position after every rank has taken `batches` batches from `from` on: the beginning of the next epoch
  /// if these are all that the epoch has left.
  /// @throws DataError as `epoch`; InvalidArgument if the epoch has fewer batches left
  [[nodiscard]] Position after(const Position& from, std::size_t batches) const {
    const std::size_t taken = check(from);
    const std::size_t left = batches_of(samples_ - taken);
    if (batches > left)
      throw InvalidArgument(
          "invalid batches " + std::to_string(batches) + ": the epoch has " + std::to_string(left) + " left",
          context());
    Position to = from;
    to.taken += batches * global_batch();
    return batches == left ? position(from.epoch + 1) : to;
  }

  /// Returns the number of samples that a rank has in an epoch; the same on every rank.
  [[nodiscard]] std::size_t size() const noexcept { return batches_ * options_.batch_size; }
  /// Returns the number of batches that a rank has in an epoch.
  [[nodiscard]] std::size_t batches() const noexcept { return batches_; }
  /// Returns the samples in a batch of one rank.
  [[nodiscard]] std::size_t batch_size() const noexcept { return options_.batch_size; }
  /// Returns the number of samples of the data set.
  [[nodiscard]] std::size_t samples() const noexcept { return samples_; }
  /// Returns the rank whose samples these are.
  [[nodiscard]] int rank() const noexcept { return static_cast<int>(rank_); }
  /// Returns the number of ranks that the samples are assigned to.
  [[nodiscard]] int ranks() const noexcept { return static_cast<int>(ranks_); }
  /// Revokes the communicator that the constructor was given, if it was one that still exists: its calls throw on every
  /// rank.
  void revoke(const std::string& reason) const {
    if (revoker_) revoker_(reason);
  }

 private:
  [[nodiscard]] ErrorContext context() const noexcept {
    return {.operation = "DistributedSampler", .rank = rank(), .size = ranks()};
  }
  [[nodiscard]] std::size_t global_batch() const noexcept { return options_.batch_size * ranks_; }
  [[nodiscard]] std::size_t batches_of(std::size_t samples) const noexcept {
    return (samples + (options_.remainder == Remainder::drop ? 0 : global_batch() - 1)) / global_batch();
  }
  [[nodiscard]] std::size_t check(const Position& from) const {
    if (from.seed != options_.seed || from.samples != samples_ || from.taken >= samples_)
      throw DataError("the position " + from.to_string() + " is not one of this sampler, which has seed=" +
                          std::to_string(options_.seed) + " samples=" + std::to_string(samples_) +
                          "; resume with the data set and the seed of the interrupted run",
                      context());
    return static_cast<std::size_t>(from.taken);
  }

  std::size_t samples_;
  std::size_t rank_;
  std::size_t ranks_;
  SamplerOptions options_;
  std::size_t batches_ = 0;
  std::function<void(const std::string&)> revoker_{};
};

}  // namespace distx::inline DISTX_ABI
