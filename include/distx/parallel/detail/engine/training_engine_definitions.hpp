// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <thread>

#include "distx/core/detail/revoke_on_exception.hpp"
#include "distx/parallel/detail/base/tensor_runs.hpp"
#include "distx/parallel/detail/engine/training_engine.hpp"

namespace distx::inline DISTX_ABI::detail {

/// TrainingMesh::pass_whole: the ranks add their parts of a parameter, each in an array of zeros, as integers.
template <MemorySpace Space>
void pass_whole(TrainingMesh<Space>& mesh, const std::function<Span<const AnyElement, Space>()>& part,
                const ParameterVisitor<Space>& f, typename Space::stream after, const std::source_location& location) {
  for (const auto& [name, type, empty, of, counted, sharded, trained, rows, arrays] : mesh.parameters) {
    Span<const AnyElement, Space> values(nullptr, 0, type, size_of(type));
    if (!empty) values = part();
    if (!sharded) {
      f(name, values);
      continue;
    }
    const std::size_t width = size_of(type), size = of.size();
    const auto sum_of_parts = buffer_on<std::uint32_t, Space>(after, (size * width + 3) / 4);
    const Span<std::byte, Space> whole(reinterpret_cast<std::byte*>(sum_of_parts.data()), size * width);
    const Span<const std::byte, Space> own(static_cast<const std::byte*>(values.data()), values.size() * width);
    if (of.first && !empty)
      for_each_run(of, [&](std::size_t to, std::size_t from, std::size_t count) {
        copy(after, whole.subspan(to * width, count * width), own.subspan(from * width, count * width));
      });
    make_in_order(*mesh.across,
                  AllReduce<std::uint32_t, Sum, Space>{sum_of_parts.span(), sum_of_parts.span(), sum, location}, after);
    f(name, {whole.data(), size, type, width});
  }
}

template <MemorySpace Space>
TrainingEngine<Space>::TrainingEngine(AnyCommunicator<Space> comm, std::vector<ParameterEntry<Space>> entries,
                                      const AnyOptimizer<Space>& optimizer, const TrainingPolicies& policies,
                                      const DataParallelOptions& options, const here& location)
    : policies_(with_shared_weights(policies, options, comm, entries)),
      options_(options),
      location_(location),
      comms_(std::move(comm), location),
      parameters_(std::move(entries)),
      buckets_(make_training_buckets(parameters_, comms_, optimizer, policies_, options, location)),
      spare_processor_(has_spare_processor()),
      reducer_(buckets_.all(), parameters_, comms_, policies_, buckets_.gradient_pool(),
               options.overlap && policies_.hook == nullptr && (spare_processor_ || policies_.stage >= 2),
               options.allow_unused, one_pass()),
      shards_(buckets_.all(), parameters_, comms_, policies_, options.overlap),
      scaling_(options, parameters_.scales_loss(policies_)),
      divergence_(options.guard_every) {
  if (policies_.stage == 3) {
    gatherer_ = std::make_shared<WeightGatherer<Space>>(buckets_.all(), parameters_, comms_, buckets_.value_pool(),
                                                        options.overlap);
    always_whole_ = gatherer_->always_whole();
  }
  parameters_.claim(reducer_.allocates_gradients_lazily() || !done_at_return<Space>,
                    [this](std::size_t index, stream after) {
                      const Guard on(device_);
                      return guard([&] {
                        calls_.enter(after);
                        return reducer_.open(index, after);
                      });
                    });
  guard([&] { open_always_whole({}, location); });
}

template <MemorySpace Space>
TrainingEngine<Space>::~TrainingEngine() {
  const Guard on(device_);
  try {
    if (replicas_ && replicas_->interrupted() && replicas_.use_count() > 1) replicas_->capture(replicated_state(), {});
  } catch (...) {  // `recover` throws on every rank, if no other version is left
  }
  parameters_.release();
  reducer_.abandon();
  shards_.abandon();
  if (gatherer_ != nullptr) gatherer_->abandon();
  try {
    synchronize_all<Space>();  // enqueued work may use memory that is freed now
  } catch (...) {              // a broken device does no work
  }
}

template <MemorySpace Space>
bool TrainingEngine<Space>::has_spare_processor() {
  auto& all = comms_.all();
  if (all.size() == 1 || !all.passes_operands()) return true;
  // Ranks may see different numbers of processors.
  unsigned processors = std::thread::hardware_concurrency();
  comms_.guard([&] { all_reduce_values(all, Span<unsigned>(&processors, 1), max, location_); });
  return processors > static_cast<unsigned>(all.size());
}

template <MemorySpace Space>
void TrainingEngine<Space>::join_mesh(TrainingMesh<Space> mesh) {
  mesh_ = std::move(mesh);
  mesh_.add_empty = &add_empty<Space>;
  mesh_.pass_whole = &pass_whole<Space>;
  comms_.revoke_also(mesh_.revoke);
  if (mesh_.whole)
    check_same_mesh_training(*mesh_.whole, mesh_.parameters, mesh_.optimizer, options_,
                             context("MeshParallel", location_));
  std::vector<bool> counts;
  std::vector<NormNumber> numbers;
  for (std::size_t i = 0; i < mesh_.parameters.size(); ++i) {
    if (mesh_.parameters[i].empty) continue;
    present_.push_back(i);
    parts_.push_back(mesh_.parameters[i].part);
    counts.push_back(parts_.back().first && mesh_.parameters[i].counted);
    numbers.push_back({i, parts_.back().first});
  }
  std::vector<AnyCommunicator<Space>> others;
  for (auto* const comm : {&mesh_.stages, &mesh_.across})
    if (*comm) others.push_back((*comm)->share());
  if (!others.empty()) scaling_.extend(std::move(others), std::move(counts), location_);
  if (mesh_.by_norms && mesh_.across)
    shards_.update_together(*mesh_.across, std::move(numbers), mesh_.parameters.size());
  if (mesh_.matrices.transform && mesh_.whole)
    buckets_.allocate_together(*mesh_.whole, context("MeshParallel", location_), [&] {
      shards_.update_together(MeshMatrices<Space>(mesh_.whole->share(), mesh_.parameters, mesh_.matrices, account()),
                              std::move(numbers));
    });
}

template <MemorySpace Space>
std::uint64_t TrainingEngine<Space>::replicate(KeptReplicas<Space>& kept, const here& location) {
  const Recovery<Space> earlier =
      guard([&] { return Recovery<Space>(replica_comms(), kept, replicated_state(), location); });
  earlier.check(context("recover", location));  // outside the guard: every rank throws, and none revokes
  guard([&] {
    replicas_ = std::make_shared<Replicas<Space>>(comms_.all(), replicated_state(), policies_.stage == 0,
                                                  earlier.version().number, account(), location);
    kept.push_back(replicas_);
    if (!earlier.found()) return commit({}, location);
    steps_ = earlier.version().steps;
    const auto copy = [&] { return earlier.copy_to(comms_.all(), replicated_state(), location), true; };
    restore(StepCall::load, earlier.version().counters, {}, location, copy);
  });
  kept.erase(kept.begin(), kept.end() - 1);
  return static_cast<std::uint64_t>(steps_);
}

template <MemorySpace Space>
void TrainingEngine<Space>::make_call(StepCall which, const char* operation, stream after, const here& location,
                                      void* body, void (*run)(void*)) {
  const Guard on(device_);
  guard([&] {
    check(which, operation, location);
    capture_.check(which, after, context(operation, location));
    const flight::Label label({.step = steps_, .phase = operation});
    try {
      check_last_step(location);
      calls_.enter(after);
      run(body);
      open_always_whole(after, location);
      calls_.leave(after);
    } catch (const RevokedError&) {
      explain_revocation(location);
    }
  });
}

template <MemorySpace Space>
void TrainingEngine<Space>::end_and_rethrow() {
  if (!end_) try {
      const bool rank_loss = [] {
        try {
          throw;
        } catch (const Error& error) {
          return is_rank_loss(error);
        } catch (...) {
          return false;
        }
      }();
      end_ = std::make_shared<const TrainingEnd>(TrainingEnd{
          "this training has ended because of an error in step " + std::to_string(steps_) + ": " +
              RevocationReason::of_current().text +
              (rank_loss && policies_.replicate ? "; continue by recover on the surviving ranks, or " : "; ") +
              "make a new communicator and training, and load the last checkpoint",
          rank_loss});
      parameters_.end(end_);
    } catch (const std::bad_alloc&) {  // the communicators are revoked in any case
    }
  comms_.revoke_and_rethrow();
}

template <MemorySpace Space>
void TrainingEngine<Space>::make_ready(std::size_t index, stream after, const here& location) {
  const auto& entry = parameters_[index];
  const bool last_use = parameters_.steps().ready(index, entry, context("ready", location));
  if (entry.owned && !entry.owned->requested && !options_.allow_unused && !join_.idle())
    fail(StepFault::ready_unrequested, "ready", location, entry.name);
  if (!join_.idle() && reducer_.compares_order()) announce(JoinedCall::ready, index, location);
  reducer_.written_on(index, after);  // by this use, whichever micro-batch sends it
  if (!last_use) return;
  if (entry.owned) {
    entry.owned->prepare_gradient(after);
    entry.owned->sent = true;
  }
  if (divergence_.checks(steps_) && !scaling_.skips())
    divergence_.check_gradient(entry, steps_, after, context("ready", location));
  if (state_.in_last_micro_batch() || policies_.begins_as_zeros()) reducer_.ready(index, after, location);
}

template <MemorySpace Space>
void TrainingEngine<Space>::end_joined_calls(stream after, const here& location) {
  if (!join_.idle()) return announce(JoinedCall::end, 0, location);
  join_.follow(comms_, location, [&](JoinedCall which, std::size_t index) {
    if (which == JoinedCall::unshard) return Unsharded<Space>().hold(gatherer_, index, after, location);
    if (which == JoinedCall::ready) return make_ready(index, after, location);
    if (state_.begin_micro_batch(which == JoinedCall::last_micro_batch)) end_micro_batch(after, location);
    // Below stage 3 the other ranks may wait for these in ready, until their gradients have memory.
    if (policies_.stage == 2) start_rest(after, location);
  });
}

template <MemorySpace Space>
void TrainingEngine<Space>::check_order(const MicroBatchIndex& which, const here& location) const {
  const std::string given = ".index = " + std::to_string(which.index) + ", .count = " + std::to_string(which.count);
  if (which.index >= which.count)
    throw InvalidArgument("invalid " + given + ": the index must be below the count", context("micro_batch", location));
  const int ranks = comms_.all().size();
  if (const std::size_t leaves = policies_.leaves(ranks); leaves != 0 && which.count != leaves)
    throw InvalidArgument("invalid " + given + ": Reproducible<" + std::to_string(policies_.virtual_ranks) + "> on " +
                              std::to_string(ranks) + " ranks needs .count = " + std::to_string(leaves),
                          context("micro_batch", location));
  if (!state_.expects(which.index, which.count))
    throw InvalidState(given + " does not follow .index = " + std::to_string(state_.micro_batches()) +
                           "; begin the micro-batches of a step in order, with the same count",
                       context("micro_batch", location));
}

template <MemorySpace Space>
void TrainingEngine<Space>::end_step(stream after, const here& location) {
  shards_.gather(after, location);
  await_others(location);
  reducer_.restart(false);
  parameters_.restart(false, true);
  scaling_.begin_step();
  join_.end_step();
  if (gatherer_ != nullptr) gatherer_->restart(after);
  if (divergence_.checks(steps_))
    divergence_.check_weights(parameters_, shards_, comms_, shards_weights(), steps_, after, context("step", location));
  state_.finish();
  ++steps_;
  commit(after, location);
}

template <MemorySpace Space>
std::unique_ptr<TrainingCalls<Space>> make_engine(AnyCommunicator<Space> comm, const ParameterList<Space>& parameters,
                                                  const AnyOptimizer<Space>& optimizer,
                                                  const TrainingPolicies& policies, const DataParallelOptions& options,
                                                  const std::source_location& location) {
  const ErrorContext context{"DataParallel", comm.backend(), comm.rank(), comm.size(), location};
  const auto chosen = revoke_on_exception([&] { return with_stage(policies, options.stage, context); },
                                          [&](const RevocationReason& reason) { comm.revoke(reason.published()); });
  return std::make_unique<TrainingEngine<Space>>(std::move(comm), ParameterListAccess::entries(parameters), optimizer,
                                                 chosen, options, location);
}

template <MemorySpace Space>
void join_mesh(TrainingCalls<Space>& engine, TrainingMesh<Space> mesh) {
  static_cast<TrainingEngine<Space>&>(engine).join_mesh(std::move(mesh));
}

template <MemorySpace Space>
std::uint64_t replicate(TrainingCalls<Space>& engine, KeptReplicas<Space>& kept, const std::source_location& location) {
  return static_cast<TrainingEngine<Space>&>(engine).replicate(kept, location);
}

}  // namespace distx::inline DISTX_ABI::detail
