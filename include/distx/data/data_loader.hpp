// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <iterator>
#include <memory>

#include "distx/data/detail/prefetcher.hpp"
#include "distx/data/distributed_sampler.hpp"

namespace distx {

/// What may be set of a DataLoader.
struct LoaderOptions {
  std::size_t workers = 1;              ///< threads that make batches; 0: they are made when they are asked for
  std::size_t prefetch = 2;             ///< batches that each worker may be ahead
  Timeout deadline = default_deadline;  ///< for one batch
};

/// One pass over the data: an input range of batches, in an order that does not depend on the workers.
///
/// `next()` is for loops that are not a range-for. Letting it go in mid-epoch ends the workers.
template <class Batch>
class Epoch {
 public:
  using Make = std::function<Batch(std::size_t)>;

  Epoch(std::size_t batches, Make make, const LoaderOptions& options) : batches_(batches) {
    if (options.workers == 0)
      make_ = std::move(make);
    else
      ahead_ = std::make_unique<detail::Prefetcher<Batch>>(batches, std::move(make), options.workers,
                                                           options.workers * options.prefetch, options.deadline);
  }

  /// The next batch; nothing after the last.
  /// @throws what making the batch threw, after which the epoch is over; TimeoutError
  [[nodiscard]] std::optional<Batch> next() {
    if (ahead_ != nullptr) return ahead_->next();
    if (taken_ == batches_) return std::nullopt;
    const std::size_t mine = std::exchange(taken_, batches_);
    std::optional<Batch> batch(make_(mine));
    taken_ = mine + 1;
    return batch;
  }
  /// How many batches the whole epoch has.
  [[nodiscard]] std::size_t size() const noexcept { return batches_; }

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
  /// The batches that were not taken yet.
  [[nodiscard]] iterator begin() { return iterator(*this); }
  [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }

 private:
  std::size_t batches_;
  std::size_t taken_ = 0;
  Make make_;
  std::unique_ptr<detail::Prefetcher<Batch>> ahead_;
};

/// Makes this rank's batches of each epoch, ahead of the training that uses them.
///
/// `for (auto& batch : loader.epoch(3))`. `make(indices)` gets the samples of one batch, a std::span of their indices,
/// and returns the batch; workers call it at the same time, so it only reads what it shares. It may throw: the
/// exception reaches who asks for that batch.
template <class Make>
  requires std::invocable<const Make&, std::span<const std::size_t>>
class DataLoader {
 public:
  using batch_type = std::remove_cvref_t<std::invoke_result_t<const Make&, std::span<const std::size_t>>>;

  /// @throws DataError where no batch may be ahead
  DataLoader(DistributedSampler sampler, Make make, const LoaderOptions& options = {})
      : sampler_(std::move(sampler)), make_(std::make_shared<const Make>(std::move(make))), options_(options) {
    if (options.workers > 0 && options.prefetch == 0)
      throw DataError("prefetch is 0: a worker is at least one batch ahead, or there are no workers",
                      {.operation = "DataLoader"});
  }

  /// The batches of one epoch; may outlive the loader.
  [[nodiscard]] Epoch<batch_type> epoch(std::uint64_t number) const {
    auto samples = std::make_shared<const std::vector<std::size_t>>(sampler_.epoch(number));
    const auto batch_size = sampler_.batch_size();
    return {sampler_.batches(),
            [samples, batch_size, make = make_](std::size_t batch) -> batch_type {
              return (*make)(std::span(*samples).subspan(batch * batch_size, batch_size));
            },
            options_};
  }
  [[nodiscard]] const DistributedSampler& sampler() const noexcept { return sampler_; }

 private:
  DistributedSampler sampler_;
  std::shared_ptr<const Make> make_;
  LoaderOptions options_;
};

}  // namespace distx
