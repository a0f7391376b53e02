// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>
#include <unordered_map>

#include "distx/comm/reductions.hpp"
#include "distx/parallel/agreement.hpp"
#include "distx/parallel/bucket.hpp"
#include "distx/parallel/data_parallel_options.hpp"
#include "distx/parallel/materialize.hpp"

namespace distx::detail {

/// What DataParallel does, for one memory space: no communicator's, optimizer's or element's type is left in it.
///
/// Whatever goes wrong on this rank alone revokes the communicator, so that no other rank waits for it.
template <MemorySpace Space>
class Training {
 public:
  using stream = typename Space::stream;
  using here = std::source_location;
  /// Makes the update of a bucket of so many elements of one type.
  using MakeUpdate = std::function<std::unique_ptr<ShardUpdate<Space>>(ElementType, std::size_t)>;

  struct Optimizer {
    std::string name;  ///< the same on every rank for the same type
    bool decays;       ///< whether a group can set a decay
    std::function<void()> validate;
    MakeUpdate make_update;
  };

  Training(AnyCommunicator<Space> comm, std::vector<Entry<Space>> entries, const Optimizer& optimizer,
           const DataParallelOptions& options, const here& location)
      : comm_(std::move(comm)), entries_(std::move(entries)), options_(options), location_(location) {
    guarded([&] { check(optimizer); });
    if (comm_.size() > 1) {
      Belief belief{{options_.words() + ", " + optimizer.name}};
      for (const auto& entry : entries_) belief.lines.push_back(entry.words());
      demand_agreement(comm_, belief, context("DataParallel"));  // all ranks throw the same: nobody waits
    }
    guarded([&] {
      build(optimizer);
      broadcast_values();
    });
  }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;
  ~Training() {
    for (auto& entry : entries_)
      if (entry.owned && entry.value.data() == entry.owned->value.data() && !entry.value.empty())
        entry.owned->in_training = false;
  }

  void ready(const void* identity, stream after) {
    guarded([&] {
      const auto found = places_.find(identity);
      if (found == places_.end())
        fail("ready", "this is none of the training's parameters: pass the weights, or the Parameters, that it was "
                      "made of, and do not let a container move them");
      const Entry<Space>& entry = entries_[found->second];
      Progress& progress = progress_[found->second];
      const std::string name = "'" + entry.name + "' ";
      if (phase_ != Phase::backward) fail("ready", name + "comes after reduce: call gather, or step, first");
      if (entry.buffer) fail("ready", name + "is a buffer and has no gradient");
      if (!entry.options.trainable) fail("ready", name + "is frozen and has no gradient: set .trainable");
      if (progress.uses == entry.options.uses)
        fail("ready", name + (entry.options.uses == 1
                                  ? "is ready already: declare it with .uses = 2 if two layers share it"
                                  : "has been ready for all of its .uses already"));
      if (++progress.uses < entry.options.uses) return;
      if (entry.owned) {
        entry.owned->touch(after);
        entry.owned->sent = true;
      }
      --buckets_[progress.bucket].missing;
      if (!options_.overlap || comm_.size() == 1) return;
      while (started_ < buckets_.size() && buckets_[started_].missing == 0)
        buckets_[started_++].start(comm_, after, location_);
      if (started_ > 0) buckets_[started_ - 1].advance();
    });
  }

  void reduce(stream after, const here& location) {
    guarded([&] {
      if (phase_ != Phase::backward)
        fail("reduce", "the gradients are reduced already: call update and gather next", location);
      settle_unused(after, location);
      if (comm_.size() > 1) {
        for (std::size_t i = started_; i < buckets_.size(); ++i)
          if (options_.overlap) buckets_[i].start(comm_, after, location);
          else buckets_[i].execute(comm_, after, location);
        if (options_.overlap)
          for (auto& bucket : buckets_) bucket.finish(after);
      }
      phase_ = Phase::reduced;
    });
  }

  void update(const StepOptions& options, stream after, const here& location) {
    guarded([&] {
      check_step(options, "update", location);
      if (phase_ != Phase::reduced) fail("update", "the gradients are not reduced: call reduce first", location);
      for (auto& bucket : buckets_) {
        std::size_t offset = 0;
        for (const auto member : bucket.members) {
          const Entry<Space>& entry = entries_[member];
          Progress& progress = progress_[member];
          if (!progress.skipped) {
            const auto& group = entry.options.group;
            const Step step{options.learning_rate * group.learning_rate_scale, ++progress.updates, group.weight_decay};
            bucket.update->update(after, step, entry.value, entry.gradient, offset);
          }
          offset += entry.size();
        }
      }
      phase_ = Phase::updated;
    });
  }

  void gather(const here& location) {
    guarded([&] {
      if (phase_ == Phase::backward) fail("gather", "the gradients are not reduced: call reduce first", location);
      for (auto& bucket : buckets_) bucket.missing = bucket.members.size();
      for (auto& progress : progress_) progress.uses = 0;
      for (const auto& entry : entries_)
        if (entry.owned) entry.owned->touched = entry.owned->sent = false;
      started_ = 0;
      phase_ = Phase::backward;
    });
  }

  void check_step(const StepOptions& options, const char* operation, const here& location) {
    guarded([&] {
      if (std::isnan(options.learning_rate))
        fail(operation, "the learning rate is not a number: pass one, {.learning_rate = 1e-3} say", location);
      if (!std::isfinite(options.learning_rate) || options.learning_rate < 0)
        fail(operation, "the learning rate is " + std::to_string(options.learning_rate) +
                            ": it must be finite and at least 0", location);
    });
  }

  [[nodiscard]] std::size_t bucket_count() const noexcept { return buckets_.size(); }

 private:
  enum class Phase { backward, reduced, updated };
  struct Progress {
    std::size_t bucket = 0;
    int uses = 0;               // calls of ready in this step
    bool skipped = false;       // no rank had a gradient in this step
    std::uint64_t updates = 0;  // so far
  };

  void check(const Optimizer& optimizer) {
    const ErrorContext in = context("DataParallel");
    optimizer.validate();
    if (options_.broadcast_from < 0 || options_.broadcast_from >= comm_.size())
      throw MismatchError(".broadcast_from = " + std::to_string(options_.broadcast_from) +
                              " is no rank: ranks are 0 to " + std::to_string(comm_.size() - 1),
                          in);
    check_list(entries_, in);
    for (const auto& entry : entries_)
      if (entry.options.group.weight_decay && !optimizer.decays)
        throw MismatchError("the group of '" + entry.name + "' sets .weight_decay, and the optimizer has none", in);
  }

  void build(const Optimizer& optimizer) {
    progress_.resize(entries_.size());
    for (auto& members : plan_buckets(entries_, options_.first_bucket_bytes(), options_.bucket_bytes)) {
      std::size_t elements = 0;
      for (const auto member : members) {
        progress_[member].bucket = buckets_.size();
        elements += entries_[member].size();
      }
      Bucket<Space>& bucket = buckets_.emplace_back(std::move(members));
      const Entry<Space>& first = entries_[bucket.members.front()];
      if (first.owned) bucket.own(materialize(comm_, entries_, bucket.members));
      else if (comm_.size() > 1) bucket.borrow(comm_, entries_);
      bucket.update = optimizer.make_update(first.type(), elements);
    }
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      auto& entry = entries_[i];
      if (entry.owned && !entry.trained()) materialize(comm_, entries_, {i});
      if (entry.owned) {
        entry.owned->in_training = true;
        entry.owned->touched = entry.owned->sent = false;
      }
      places_.emplace(entry.owned ? static_cast<const void*>(entry.owned.get()) : entry.value.data(), i);
    }
  }

  void broadcast_values() {
    if (comm_.size() == 1) return;
    for (const auto& entry : entries_)
      comm_.execute(Broadcast<AnyElement, Space>{entry.value, options_.broadcast_from, location_});
  }

  /// Finds the parameters without gradient: errors, or zeros here and skipped where no rank has one.
  void settle_unused(stream after, const here& location) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const Entry<Space>& entry = entries_[i];
      const int uses = progress_[i].uses;
      if (!entry.trained() || uses == entry.options.uses) continue;
      if (entry.owned && entry.owned->touched && uses == 0)
        fail("reduce", "the gradient of '" + entry.name + "' was asked for, and ready was not called for it: call it",
             location);
      if (options_.allow_unused) continue;
      if (uses == 0)
        fail("reduce", "'" + entry.name + "' has no gradient in this step: call ready for it, freeze it with "
                       ".trainable = false, or allow that with .allow_unused = true", location);
      fail("reduce", "ready was called " + std::to_string(uses) + " times for '" + entry.name +
                         "', declared with .uses = " + std::to_string(entry.options.uses) +
                         ": call it for each use, or set .allow_unused = true",
           location);
    }
    if (!options_.allow_unused) return;
    std::vector<std::uint8_t> used(entries_.size());
    for (std::size_t i = 0; i < used.size(); ++i) used[i] = progress_[i].uses > 0 ? 1 : 0;
    const std::vector<std::uint8_t> used_here = used;
    if (comm_.size() > 1) all_reduce(comm_, Span<std::uint8_t, Space>(used.data(), used.size()), max, location);
    for (std::size_t i = 0; i < used.size(); ++i) {
      const Entry<Space>& entry = entries_[i];
      if (!entry.trained()) continue;
      progress_[i].skipped = used[i] == 0;
      if (used_here[i] == 0 && comm_.size() > 1)
        fill(after, Span<std::byte, Space>(entry.gradient.bytes(), entry.gradient.size_bytes()), std::byte{0});
    }
  }

  template <class F>
  void guarded(F&& f) {
    try {
      f();
    } catch (const std::exception& error) {
      comm_.revoke(error.what());
      throw;
    } catch (...) {
      comm_.revoke("an exception that is no std::exception");
      throw;
    }
  }

  [[nodiscard]] ErrorContext context(std::string_view operation) const {
    return context(operation, location_);
  }
  [[nodiscard]] ErrorContext context(std::string_view operation, const here& location) const {
    return {operation, comm_.backend(), comm_.rank(), comm_.size(), location};
  }
  [[noreturn]] void fail(const char* operation, const std::string& words) const { fail(operation, words, location_); }
  [[noreturn]] void fail(const char* operation, const std::string& words, const here& location) const {
    throw MismatchError(words, context(operation, location));
  }

  AnyCommunicator<Space> comm_;
  std::vector<Entry<Space>> entries_;
  DataParallelOptions options_;
  here location_;
  std::vector<Progress> progress_;
  std::unordered_map<const void*, std::size_t> places_;
  std::vector<Bucket<Space>> buckets_;
  std::size_t started_ = 0;  // buckets whose reduction has begun in this step
  Phase phase_ = Phase::backward;
};

}  // namespace distx::detail
