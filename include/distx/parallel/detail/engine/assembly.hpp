// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <unordered_map>

#include "distx/core/detail/revoke_on_exception.hpp"
#include "distx/parallel/build.hpp"
#include "distx/parallel/detail/engine/agreement.hpp"
#include "distx/parallel/detail/engine/uses.hpp"

namespace distx::detail {

/// A training put together: its parameters in buckets, all memory, and what reduces and gathers. Made collectively.
///
/// Whatever goes wrong on this rank alone revokes the communicators, so that no other rank waits for it.
template <MemorySpace Space>
class Assembly {
 public:
  using stream = typename Space::stream;
  using here = std::source_location;

  Assembly(AnyCommunicator<Space> comm, std::vector<Entry<Space>> listed, const AnyOptimizer<Space>& optimizer,
           const TrainingPolicies& chosen, const DataParallelOptions& set, const here& where)
      : policies(chosen),
        options(set),
        location(where),
        wires{comm.share(), comm.share(), std::move(comm)},
        entries(std::move(listed)),
        uses(entries.size()) {
    guarded([&] { check(optimizer); });
    if (wires.all.size() > 1) {
      Belief belief{{policies.to_string() + ", " + options.to_string() + ", " + optimizer.name}};
      for (const auto& entry : entries) belief.lines.push_back(entry.to_string());
      demand_agreement(wires.all, belief, context("DataParallel"));  // all ranks throw the same: nobody waits
    }
    guarded([&] { build(optimizer); });
  }
  Assembly(const Assembly&) = delete;
  Assembly& operator=(const Assembly&) = delete;
  ~Assembly() {
    units = nullptr;  // scopes that are left do nothing from here on
    let_parameters_go();
    for (auto& bucket : buckets) bucket.let_go();
    try {
      synchronize_all<Space>();  // of what is enqueued, some uses memory that is freed now
    } catch (...) {              // then nothing goes on any more
    }
  }

  /// Once: afterwards they may be another training's.
  void let_parameters_go() noexcept {
    if (std::exchange(let_go_, true)) return;
    for (auto& entry : entries) {
      if (!entry.owned) continue;
      auto& state = *entry.owned;
      state.in_training = false;
      state.open_gradient = nullptr;
      state.gradient = {};
      if (std::exchange(state.sharded, false)) {
        state.value = {};
        state.lost = true;
      }
    }
  }

  template <class F>
  void guarded(F&& f) {
    revoke_on_exception(f, [&](const char* words) { revoke(words); });
  }

  [[nodiscard]] std::size_t find(const void* identity, const char* operation) const {
    const auto found = places_.find(identity);
    if (found == places_.end())
      fail(operation,
           "this is none of the training's parameters: pass the weights, or the Parameters, that it was "
           "made of, and do not let a container move them",
           location);
    return found->second;
  }
  [[nodiscard]] ErrorContext context(std::string_view operation) const { return context(operation, location); }
  [[nodiscard]] ErrorContext context(std::string_view operation, const here& where) const {
    return {operation, wires.all.backend(), wires.all.rank(), wires.all.size(), where};
  }
  [[noreturn]] void fail(const char* operation, const std::string& words, const here& where) const {
    throw MismatchError(words, context(operation, where));
  }

  TrainingPolicies policies;
  DataParallelOptions options;
  here location;  ///< where the training was made
  Wires<Space> wires;
  std::vector<Entry<Space>> entries;
  Uses<Space> uses;
  CallOrder<Space> calls{};
  std::shared_ptr<MemoryAccount> account = std::make_shared<MemoryAccount>();
  std::vector<std::size_t> bucket_of{};          ///< each entry
  std::unique_ptr<Pool<Space>> gradient_pool{};  ///< empty where all gradients lie in place
  std::unique_ptr<Pool<Space>> value_pool{};     ///< null below stage 3
  Buckets<Space> buckets{};                      ///< behind the pools, from which they borrow
  std::unique_ptr<Reducer<Space>> reducer{};
  std::shared_ptr<Units<Space>> units{};  ///< null below stage 3

 private:
  void check(const AnyOptimizer<Space>& optimizer) {
    const ErrorContext in = context("DataParallel");
    optimizer.validate();
    if (options.broadcast_from < 0 || options.broadcast_from >= wires.all.size())
      throw MismatchError(".broadcast_from = " + std::to_string(options.broadcast_from) +
                              " is no rank: ranks are 0 to " + std::to_string(wires.all.size() - 1),
                          in);
    if (!(options.clip_norm > 0))
      throw MismatchError(".clip_norm = " + std::to_string(options.clip_norm) +
                              ": it must be above 0; leave it out where nothing is to be clipped",
                          in);
    if (policies.hybrid && (options.group_ranks < 1 || wires.all.size() % options.group_ranks != 0))
      throw MismatchError(".group_ranks = " + std::to_string(options.group_ranks) +
                              ": Hybrid shares out among so many "
                              "ranks, which must divide all " +
                              std::to_string(wires.all.size()),
                          in);
    if (!policies.hybrid && options.group_ranks != 0)
      throw MismatchError(".group_ranks is set, and Hybrid is not among the policies: name it, or leave it out", in);
    if (!(options.loss_scale > 0) || !std::isfinite(options.loss_scale))
      throw MismatchError(".loss_scale = " + std::to_string(options.loss_scale) +
                              ": it must be finite and above 0; 1 leaves losses as they are",
                          in);
    check_list(entries, in);
    for (const auto& entry : entries) {
      if (entry.options.group.weight_decay && !optimizer.decays)
        throw MismatchError("the group of '" + entry.name + "' sets .weight_decay, and the optimizer has none", in);
      if (optimizer.takes_whole == TakesWhole::all && entry.trained() && entry.options.rows == 0)
        throw MismatchError("'" + entry.name +
                                "' is no matrix, and the optimizer knows matrices alone: say how many "
                                ".rows it has, or mix the optimizer with another one for all else: "
                                "distx::Mixed{distx::Muon{}, distx::AdamW{}}",
                            in);
      if (policies.stage >= 2 && !entry.owned && entry.trained())
        throw MismatchError("'" + entry.name + "' is borrowed, and " + policies.to_string() +
                                " decides when a gradient has memory: make it a distx::Parameter, or name ZeRO<0> or "
                                "ZeRO<1>",
                            in);
    }
  }

  void build(const AnyOptimizer<Space>& optimizer) {
    synchronize_all<Space>();  // weights are as they are when all that writes them is done
    const int stage = policies.stage;
    if (policies.hybrid) {
      const int rank = wires.all.rank();
      wires.reducing = wires.all.split(rank / options.group_ranks, rank);
      wires.across = wires.all.split(rank % options.group_ranks, rank);
      wires.gathering = wires.reducing.share();
    }
    if (stage == 3) wires.gathering = wires.reducing.split(0, wires.reducing.rank());
    lay_out_buckets(buckets, entries, wires, optimizer, policies, options, location);
    allocate_together([&] {
      allocate_shared(buckets, wires, stage, account);
      const auto pool = [&](std::size_t bytes, auto&& hold) {
        return std::make_unique<Pool<Space>>(account, bytes == 0 ? nullptr : hold(bytes));
      };
      gradient_pool = pool(gradient_pool_bytes(buckets, stage >= 2), [&](std::size_t bytes) {
        if constexpr (HostAccessible<Space>) return hold_shared(wires.reducing, account, MemoryKind::in_flight, bytes);
        // Gradients become ready, and get their place, in any order; a GPU's communicator wants its own memory of all
        // ranks or of none.
        else
          return hold_local<Space>(account, MemoryKind::in_flight, bytes);
      });
      if (stage == 3)
        value_pool = pool(Units<Space>::pool_bytes(buckets, entries, options.overlap), [&](std::size_t bytes) {
          return hold_shared(wires.gathering, account, MemoryKind::in_flight, bytes);
        });
    });
    allocate_together([&] { allocate_local(buckets, entries, optimizer, policies, account); });
    reducer = std::make_unique<Reducer<Space>>(buckets, entries, wires, policies, gradient_pool.get(), options.overlap,
                                               options.allow_unused);
    if (stage == 3) units = std::make_shared<Units<Space>>(buckets, entries, wires, *value_pool, options.overlap);
    set_values(buckets, entries, wires, value_pool.get(), options.broadcast_from, location);
    for (const auto& entry : entries)
      if (!entry.owned && wires.all.size() > 1)
        make_behind(wires.all, Broadcast<AnyElement, Space>{entry.value, options.broadcast_from, location}, stream{});
    adopt_values(buckets, entries);
    stream{}.synchronize();
    claim();
  }

  void revoke(const char* words) {
    wires.all.revoke(words);
    wires.reducing.revoke(words);
    wires.gathering.revoke(words);
    if (wires.across) wires.across->revoke(words);
  }

  /// Allocates on every rank or on none.
  /// @throws MemoryError, with what this rank holds so far, on every rank
  template <class F>
  void allocate_together(F&& f) {
    std::string words;
    std::uint8_t failed = 0;
    try {
      try {
        f();
      } catch (const MemoryError& error) {
        words = error.what();
      } catch (const std::bad_alloc& error) {
        words = error.what();
      }
      failed = words.empty() ? 0 : 1;
      if (wires.all.size() > 1) all_reduce_values(wires.all, Span<std::uint8_t>(&failed, 1), max, location);
      if (failed != 0 && words.empty()) words = "another rank could not allocate";
    } catch (const RevokedError& error) {  // where an allocation is collective, its failure has ended the others' calls
      failed = 1;
      if (words.empty()) words = error.what();
    }
    if (failed == 0) return;
    throw MemoryError(words + ": take a higher stage of ZeRO, more ranks or smaller buckets; this rank holds " +
                          account->ledger().to_string(),
                      context("DataParallel"));
  }

  void claim() {
    bucket_of.resize(entries.size());
    for (std::size_t b = 0; b < buckets.size(); ++b)
      for (const auto member : buckets[b].members) bucket_of[member] = b;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      auto& entry = entries[i];
      places_.emplace(entry.owned ? static_cast<const void*>(entry.owned.get()) : entry.value.data(), i);
      if (!entry.owned) {
        account->add(MemoryKind::weights, entry.buffer ? 0 : entry.bytes());
        account->add(MemoryKind::gradients, entry.trained() ? entry.bytes() : 0);
        continue;
      }
      auto& state = *entry.owned;
      state.in_training = true;
      state.initialize = nullptr;  // what it holds may be large
      state.touched = state.sent = false;
      if (entry.trained() && (reducer->lends() || !done_at_return<Space>))
        state.open_gradient = [this, i](stream after) {
          guarded([&] {
            calls.enter(after);
            reducer->open(bucket_of[i], after);
          });
        };
    }
  }

  std::unordered_map<const void*, std::size_t> places_;
  bool let_go_ = false;
};

}  // namespace distx::detail
