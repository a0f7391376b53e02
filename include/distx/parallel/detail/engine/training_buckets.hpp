// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cerrno>

#include "distx/comm/movement.hpp"
#include "distx/parallel/detail/bucket/allocate.hpp"
#include "distx/parallel/detail/bucket/lay_out_buckets.hpp"
#include "distx/parallel/detail/engine/checks/check_training.hpp"
#include "distx/parallel/detail/engine/gather/weight_gatherer.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Gives owned parameters the first values of rank `root`, or those that an earlier training has left there.
///
/// At stage 3 one bucket at a time is whole, in memory of the pool. Collective over all ranks.
template <MemorySpace Space>
void set_initial_values(Buckets<Space>& buckets, const std::vector<ParameterEntry<Space>>& entries,
                        TrainingCommunicators<Space>& comms, MemoryPool<Space>& pool, int root,
                        const std::source_location& location) {
  const typename Space::stream stream{};
  for (auto& bucket : buckets) {
    if (!bucket.owned) continue;
    auto& buffer = bucket.buffers.front();
    const bool sharded = buffer.separate_value_shard;
    const bool in_place = comms.shards() == 1 && !buffer.mapped_value.empty();  // the only shard is whole
    PoolAllocation<Space> whole;
    Span<AnyElement, Space> values = in_place ? buffer.mapped_value : buffer.value;
    if (sharded && !in_place) {
      whole = pool.take_or_allocate(buffer.layout.bytes(), stream);
      values = buffer.layout.over(whole.span());
      fill(stream, whole.span(), std::byte{0});
      stream.synchronize();  // an initializer may write on any stream
    }
    for (const auto& range : buffer.layout.ranges) {
      auto& state = *entries[range.entry].owned;
      const auto value = values.subspan(range.begin, range.size);
      if (state.value.empty())
        state.initialize(value);
      else
        copy(stream, bytes_of(value), bytes_of(state.value));
      state.place(sharded ? Span<AnyElement, Space>{} : value);
      state.value_memory = sharded ? nullptr : bucket.memory.front();
      state.sharded = sharded;
      if (!buffer.gradient.empty()) state.gradient = buffer.gradient.subspan(range.begin, range.size);
    }
    synchronize_all<Space>();
    if (comms.all().size() > 1)
      execute_after(comms.all(), Broadcast<AnyElement, Space>{values, root, location}, stream);
    if (sharded && !in_place) copy(stream, bytes_of(buffer.value_shard), bytes_of(buffer.own(values)));
  }
}

/// Passes the optimizers' shards their first values.
template <MemorySpace Space>
void adopt_values(Buckets<Space>& buckets, const std::vector<ParameterEntry<Space>>& entries) {
  for (auto& bucket : buckets) {
    if (!bucket.trained) continue;
    std::size_t number = 0;
    for (const auto& buffer : bucket.buffers)
      for (const auto& range : buffer.updated)
        bucket.update->adopt({}, number++, buffer.fragment(range, entries).weight);
  }
}

/// The buckets of a training and all of its memory.
template <MemorySpace Space>
class TrainingBuckets {
 public:
  /// Lays out the buckets, allocates their memory and sets the first values. Collective over all ranks.
  /// @throws MemoryError on every rank if one cannot allocate
  TrainingBuckets(const ParameterStore<Space>& parameters, TrainingCommunicators<Space>& comms,
                  const AnyOptimizer<Space>& optimizer, const TrainingPolicies& policies,
                  const DataParallelOptions& options, const ErrorContext& context)
      : buckets_(lay_out_buckets(parameters.entries(), comms, optimizer, policies, options, context.location)) {
    const auto& entries = parameters.entries();
    const int stage = policies.stage;
    std::size_t value_bytes = 0;
    allocate_together(comms.all(), context, [&] {
      allocate_shared(buckets_, comms, stage, options, account_);
      const auto make_pool = [&](std::size_t bytes, AnyCommunicator<Space>* comm) {
        constexpr auto kind = observe::MemoryKind::in_flight;
        return std::make_unique<MemoryPool<Space>>(
            account_, bytes == 0        ? nullptr
                      : comm != nullptr ? allocate_tracked(*comm, account_, kind, bytes, comms.made_at())
                                        : allocate_tracked_local<Space>(account_, kind, bytes));
      };
      // Gradients take their memory in any order, and NCCL wants registered memory from all ranks or from none.
      gradient_pool_ =
          make_pool(gradient_pool_bytes(buckets_, stage >= 2), HostAccessible<Space> ? &comms.reducing() : nullptr);
      value_bytes = stage == 3 ? WeightGatherer<Space>::pool_bytes(buckets_, entries, options.overlap) : 0;
      if (value_bytes != 0 && options.map_weights) value_pool_ = make_pool_for_host(comms, value_bytes);
      if (value_pool_ == nullptr) value_pool_ = make_pool(value_bytes, &comms.gathering());
    });
    allocate_together(comms.all(), context, [&] {
      allocate_local(buckets_, entries, optimizer, policies, {options.state_folder, context, options.offload},
                     account_);
    });
    const bool has_own_pool = value_bytes > 0 && !value_pool_->common();
    set_initial_values(buckets_, entries, comms, has_own_pool ? *value_pool_ : *gradient_pool_, options.broadcast_from,
                       context.location);
    for (const auto& entry : entries) {
      if (entry.owned) continue;
      account_->add(observe::MemoryKind::weights, entry.buffer ? 0 : entry.bytes());
      account_->add(observe::MemoryKind::gradients, entry.trained() ? entry.bytes() : 0);
      if (comms.all().size() > 1)
        execute_after(comms.all(), Broadcast<AnyElement, Space>{entry.value, options.broadcast_from, context.location},
                      typename Space::stream{});
    }
    adopt_values(buckets_, entries);
    if (stage < 3) share_values(entries, comms, context.location);
    typename Space::stream{}.synchronize();
  }

  [[nodiscard]] Buckets<Space>& all() noexcept { return buckets_; }
  [[nodiscard]] MemoryPool<Space>& gradient_pool() noexcept { return *gradient_pool_; }
  [[nodiscard]] MemoryPool<Space>& value_pool() noexcept { return *value_pool_; }
  /// Whether ranks keep one copy of the weights, whole at all times: each changes its shard, in turn with readers.
  [[nodiscard]] bool shares_weights() const noexcept { return shares_weights_; }
  [[nodiscard]] const std::shared_ptr<MemoryAccount>& account() const noexcept { return account_; }

  /// Gathers the shards of other hosts into weights that the ranks of each host share, also frozen ones, after every
  /// rank has changed its shards. Collective.
  void gather_on_hosts(const std::vector<ParameterEntry<Space>>& entries, TrainingCommunicators<Space>& comms,
                       typename Space::stream after, const std::source_location& location) {
    for (auto& bucket : buckets_) {
      if (!bucket.owned || !bucket.buffers.front().mapped_on_host) continue;
      WeightGather<Space> others;
      others.start(bucket, comms.gathering(), entries, false, 0, {}, after, location);
      others.finish(bucket, entries, after);
    }
  }

  /// Allocates on every rank or on none.
  template <class F>
  void allocate_together(AnyCommunicator<Space>& comm, const ErrorContext& context, F&& f) {
    std::string message;
    int failed = 0;  // a rank that could not, counted from 1
    try {
      try {
        f();
      } catch (const MemoryError& error) {
        message = error.what();
      } catch (const std::bad_alloc& error) {
        message = error.what();
      }
      failed = message.empty() ? 0 : comm.rank() + 1;
      if (comm.size() > 1) all_reduce_values(comm, Span<int>(&failed, 1), max, context.location);
      if (failed != 0 && message.empty()) message = "rank " + std::to_string(failed - 1) + " could not allocate";
    } catch (const RevokedError& error) {  // a failed collective allocation has revoked the other ranks' calls
      if (message.empty() && error.code() != ENOMEM) throw;  // a rank is lost
      failed = 1;
      if (message.empty()) message = error.what();
    }
    if (failed == 0) return;
    throw MemoryError(message + "; use a higher stage of ZeRO, more ranks or smaller buckets; this rank holds " +
                          account_->ledger().to_string(),
                      context);
  }

 private:
  /// Returns a pool that the ranks of each host share; null if hosts share no memory. Each rank's account has a part.
  /// Collective.
  [[nodiscard]] std::unique_ptr<MemoryPool<Space>> make_pool_for_host(TrainingCommunicators<Space>& comms,
                                                                      std::size_t bytes) {
    const auto common = comms.gathering().allocate_for_host(bytes, comms.made_at());
    if (!common) return nullptr;
    return std::make_unique<MemoryPool<Space>>(
        account_, tracked_part(*common, account_, observe::MemoryKind::in_flight), common->span);
  }
  /// Gives owned parameters the weights of which all ranks, or those of each host, keep one copy, if they do.
  /// Collective.
  void share_values(const std::vector<ParameterEntry<Space>>& entries, TrainingCommunicators<Space>& comms,
                    const std::source_location& location) {
    for (auto& bucket : buckets_) {
      if (!bucket.owned || bucket.buffers.front().mapped_value.empty()) continue;
      auto& buffer = bucket.buffers.front();
      buffer.value = buffer.mapped_value;
      buffer.place_values(entries);
      shares_weights_ = true;
    }
    gather_on_hosts(entries, comms, {}, location);
    if (shares_weights_) execute(comms.gathering(), Barrier<Space>{location});
  }

  std::shared_ptr<MemoryAccount> account_ = std::make_shared<MemoryAccount>();
  std::unique_ptr<MemoryPool<Space>> gradient_pool_{};  // without memory if all gradients are reduced in place
  std::unique_ptr<MemoryPool<Space>> value_pool_{};     // without memory below stage 3
  Buckets<Space> buckets_;
  bool shares_weights_ = false;
};

/// Returns how a training proceeds: with weights that the ranks share, each updates its part, also at stage 0. Ranks
/// share memory where their communicator passes operands.
template <MemorySpace Space>
[[nodiscard]] TrainingPolicies with_shared_weights(TrainingPolicies policies, const DataParallelOptions& options,
                                                   const AnyCommunicator<Space>& comm,
                                                   const std::vector<ParameterEntry<Space>>& entries) {
  const bool owns =
      std::any_of(entries.begin(), entries.end(), [](const auto& entry) { return entry.owned != nullptr; });
  if (options.share_weights && owns && comm.passes_operands() && policies.stage == 0) policies.stage = 1;
  return policies;
}

/// Checks the arguments of a training, compares those of all ranks, and makes its buckets. Collective over all ranks.
/// @throws as the constructor of DataParallel; an error on this rank alone revokes the communicators
template <MemorySpace Space>
[[nodiscard]] TrainingBuckets<Space> make_training_buckets(
    const ParameterStore<Space>& parameters, TrainingCommunicators<Space>& comms, const AnyOptimizer<Space>& optimizer,
    const TrainingPolicies& policies, const DataParallelOptions& options, const std::source_location& location) {
  auto& all = comms.all();
  const ErrorContext context{"DataParallel", all.backend(), all.rank(), all.size(), location};
  comms.guard([&] { check_arguments(parameters.entries(), optimizer, policies, options, context); });
  if (all.size() > 1)  // all ranks throw the same error, so nothing is revoked
    check_same_training(all, parameters.entries(), optimizer, policies, options, context);
  return comms.guard([&] {
    synchronize_all<Space>();  // the first weights may still be being written
    if (policies.hybrid) comms.split(options.group_ranks);
    if (policies.stage == 3) comms.separate_gathers();
    auto chosen = options;
    chosen.map_weights = options.map_weights && (policies.weight_hook == nullptr || comms.shards() == 1);
    return TrainingBuckets<Space>(parameters, comms, optimizer, policies, chosen, context);
  });
}

}  // namespace distx::inline DISTX_ABI::detail
