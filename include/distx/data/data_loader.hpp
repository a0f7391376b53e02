// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <iterator>
#include <memory>

#include "distx/core/detail/made_here.hpp"
#include "distx/core/detail/revocation_reason.hpp"
#include "distx/data/detail/make_batch.hpp"
#include "distx/data/detail/prefetcher.hpp"
#include "distx/data/distributed_sampler.hpp"

namespace distx::inline DISTX_ABI {

/// Options of a DataLoader.
struct LoaderOptions {
  std::size_t workers = 1;              ///< threads that make batches; with 0, next() makes them
  std::size_t prefetch = 2;             ///< batches that each worker makes ahead
  Timeout deadline = default_deadline;  ///< for one batch to be made, or given up; without workers it does not apply
};

/// One pass over the data, or the rest of one: an input range of batches, in an order that does not depend on the
/// number of workers.
///
/// Destroying it before its end waits for the batches that workers are making, but no longer than until the deadline of
/// the latest one. A worker that has not returned then, for instance from a read of a file server that hangs, is
/// abandoned: it continues to own the function that makes batches, with everything captured by value. Objects that are
/// captured by reference must outlive such a worker, that is, exist until the process ends.
template <class Batch>
class Epoch {
 public:
  using Make = std::function<Batch(std::size_t)>;

  /// @param batches  that `sampler` has from `from` on
  /// @param name  returns what a batch is made of, for errors
  Epoch(const DistributedSampler& sampler, const DistributedSampler::Position& from, std::size_t batches, Make make,
        std::function<std::string(std::size_t)> name, const LoaderOptions& options)
      : sampler_(sampler), from_(from), batches_(batches) {
    if (options.workers == 0)
      make_ = std::move(make);
    else
      ahead_ = {new detail::Prefetcher<Batch>(
                    batches, std::move(make), std::move(name), options.workers, made_ahead(options), options.deadline,
                    ErrorContext{.operation = "DataLoader", .rank = sampler.rank(), .size = sampler.ranks()}),
                detail::DeleteHere{}};
  }

  /// Returns the next batch; nullopt after the last. Blocks until the batch is made.
  /// @throws DataError if a sample of this batch cannot be loaded, after which the epoch ends; TimeoutError with the
  ///   batch's samples if it is not made in time, which is not a rank loss: the sampler's communicator is revoked with
  ///   the message, so that the other ranks do not wait for this one; InvalidState in a forked process, which does not
  ///   have the workers
  [[nodiscard]] std::optional<Batch> next() {
    if (taken_ == batches_ || failed_) return std::nullopt;
    if (ahead_ != nullptr) ahead_.get_deleter().made.check("this epoch with workers", {.operation = "DataLoader"});
    failed_ = true;
    std::optional<Batch> batch = ahead_ != nullptr ? taken_ahead() : std::optional<Batch>(make_(taken_));
    failed_ = false;
    ++taken_;
    return batch;
  }
  /// Returns the position after the batches that `next` has returned on every rank, from which a checkpoint resumes
  /// with the next batch. After the last batch it is the beginning of the next epoch.
  [[nodiscard]] DistributedSampler::Position position() const { return sampler_.after(from_, taken_); }
  /// Returns the number of batches of the epoch, or of the rest of it.
  [[nodiscard]] std::size_t size() const noexcept { return batches_; }

  /// An input iterator over the batches; advancing it calls next().
  class iterator {
   public:
    using iterator_concept = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;

    iterator() = default;
    explicit iterator(Epoch& epoch) : epoch_(&epoch), batch_(epoch.next()) {}
    iterator(iterator&&) noexcept = default;
    iterator& operator=(iterator&&) noexcept = default;
    Batch& operator*() const { return *batch_; }
    iterator& operator++() {
      batch_ = epoch_->next();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const iterator& it, std::default_sentinel_t) noexcept { return !it.batch_.has_value(); }

   private:
    Epoch* epoch_ = nullptr;
    mutable std::optional<Batch> batch_;
  };
  /// Returns an iterator at the next batch that was not taken yet.
  [[nodiscard]] iterator begin() { return iterator(*this); }
  [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }

 private:
  /// Returns the number of batches that workers may make ahead, at most all.
  [[nodiscard]] std::size_t made_ahead(const LoaderOptions& options) const noexcept {
    const bool all = options.prefetch > batches_ / options.workers;
    return std::max<std::size_t>(all ? batches_ : options.workers * options.prefetch, 1);
  }
  [[nodiscard]] std::optional<Batch> taken_ahead() {
    try {
      return ahead_->next();
    } catch (const TimeoutError& error) {
      sampler_.revoke(detail::RevocationReason::of(error).published());
      throw;
    }
  }

  DistributedSampler sampler_;
  DistributedSampler::Position from_;
  std::size_t batches_;
  std::size_t taken_ = 0;
  bool failed_ = false;
  Make make_;
  std::unique_ptr<detail::Prefetcher<Batch>, detail::DeleteHere> ahead_;
};

/// Makes this rank's batches of each epoch on worker threads, ahead of the training that uses them.
///
///     distx::DataLoader loader(sampler, [&](std::span<const std::size_t> samples) { return load(samples); });
///     for (auto& batch : loader.epoch(3)) train(batch);
///
/// To resume in mid-epoch, save `position()` of the running Epoch and pass it to `epoch`.
///
/// `make` gets the indices of one batch's samples and returns the batch, or gets the index of one sample and returns
/// the sample; a batch is then a `std::vector` of samples. Workers call it concurrently, so it must not modify shared
/// data. If its reads may hang, let it own its data, for instance by a `std::shared_ptr`: see Epoch.
///
/// If it throws, `next()` throws a DataError in the place of that batch: it names the sample, or the batch's samples,
/// and the rank, and the exception is nested in it (`std::rethrow_if_nested`). The loader stays usable.
template <class Make>
  requires detail::MakesBatches<Make> || detail::MakesSamples<Make>
class DataLoader {
 public:
  using batch_type = decltype(detail::make_batch(std::declval<const Make&>(), {}, 0, {}));

  /// @throws InvalidArgument if there are workers and prefetch is 0
  DataLoader(DistributedSampler sampler, Make make, const LoaderOptions& options = {})
      : sampler_(sampler), make_(std::make_shared<const Make>(std::move(make))), options_(options) {
    if (options.workers > 0 && options.prefetch == 0)
      throw InvalidArgument("invalid prefetch 0: must be at least 1, or set workers to 0", {.operation = "DataLoader"});
  }

  /// Starts one epoch and returns its batches; they may outlive the loader.
  /// @throws BackendError if a worker thread cannot be started
  [[nodiscard]] Epoch<batch_type> epoch(std::uint64_t number) const { return epoch(sampler_.position(number)); }
  /// Starts the rest of an epoch from a position on, such as `Epoch::position` has returned before the run was
  /// interrupted. The number of ranks and the batch size may differ, see DistributedSampler::epoch.
  /// @throws DataError if the position is not one of the sampler; BackendError if a worker thread cannot be started
  [[nodiscard]] Epoch<batch_type> epoch(const DistributedSampler::Position& from) const {
    auto samples = std::make_shared<const std::vector<std::size_t>>(sampler_.epoch(from));
    const auto batch_size = sampler_.batch_size();
    return {sampler_,
            from,
            samples->size() / batch_size,
            [samples, batch_size, make = make_, number = from.epoch, rank = sampler_.rank(),
             ranks = sampler_.ranks()](std::size_t batch) {
              return detail::make_batch(*make, std::span(*samples).subspan(batch * batch_size, batch_size), number,
                                        {.operation = "DataLoader", .rank = rank, .size = ranks});
            },
            [samples, batch_size, number = from.epoch](std::size_t batch) {
              return detail::listed_samples(std::span(*samples).subspan(batch * batch_size, batch_size)) +
                     " of epoch " + std::to_string(number);
            },
            options_};
  }
  /// Returns the sampler, owned by the loader.
  [[nodiscard]] const DistributedSampler& sampler() const noexcept { return sampler_; }

 private:
  DistributedSampler sampler_;
  std::shared_ptr<const Make> make_;
  LoaderOptions options_;
};

}  // namespace distx::inline DISTX_ABI
