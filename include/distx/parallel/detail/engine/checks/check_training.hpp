// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>
#include <string>

#include "distx/core/detail/shortest.hpp"
#include "distx/parallel/data_parallel_options.hpp"
#include "distx/parallel/detail/base/training_policies.hpp"
#include "distx/parallel/detail/engine/checks/consistency.hpp"
#include "distx/parallel/detail/optimizer/any_optimizer.hpp"
#include "distx/parallel/parameter_list.hpp"
#include "distx/parallel/policies.hpp"
#include "distx/parallel/training_state.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Returns the policies of a training, with the stage that `.stage` gives to ZeRO<Dynamic>.
/// @throws InvalidArgument
[[nodiscard]] inline TrainingPolicies with_stage(TrainingPolicies policies, const std::optional<int>& stage,
                                                 const ErrorContext& context) {
  const auto fail = [&](const std::string& message) { throw InvalidArgument(message, context); };
  const bool dynamic = policies.stage == Dynamic;
  if (!dynamic && stage)
    fail(".stage has no effect with the policy ZeRO<" + std::to_string(policies.stage) +
         ">; use ZeRO<Dynamic>, or omit .stage");
  if (!dynamic) return policies;
  if (!stage) fail("ZeRO<Dynamic> needs .stage; set it to 0, 1, 2 or 3");
  if (*stage < 0 || *stage > 3) fail("invalid .stage = " + std::to_string(*stage) + ": must be 0, 1, 2 or 3");
  policies.stage = *stage;
  if (policies.stage >= 2 && policies.accumulation == Accumulation::local)
    fail("Accumulate<Local> needs whole gradients, which stage " + std::to_string(policies.stage) +
         " of ZeRO shards; use Accumulate<Sharded>");
  if (policies.stage == 0 && policies.hybrid) fail("Hybrid sharding requires stage 1, 2 or 3 of ZeRO; set .stage");
  if (policies.stage != 3 && policies.weight_hook != nullptr)
    fail(
        "the second argument of Compress is for weights that unshard gathers, as at stage 3 of ZeRO; set .stage = 3, "
        "or remove the argument");
  return policies;
}

/// Checks that Precision, Compress and `.loss_scale` apply to some trained parameter.
/// @param trained  the types of the trained parameters of a whole model, or of all parts of one
/// @throws InvalidArgument
inline void check_effects(const std::vector<ElementType>& trained, const TrainingPolicies& policies,
                          const DataParallelOptions& options, const ErrorContext& context) {
  const bool precision = policies.communication_type.has_value();
  const auto has = [&](ElementType type) { return std::find(trained.begin(), trained.end(), type) != trained.end(); };
  if (precision && !has(ElementType::bf16) && !has(ElementType::f16))
    throw InvalidArgument(
        "Precision has no effect: no trained parameter is of bfloat16 or float16; use such parameters, or remove "
        "Precision",
        context);
  if (policies.compresses() && !has(ElementType::f32))
    throw InvalidArgument("Compress has no effect: no trained parameter is of float; remove Compress", context);
  if (options.loss_scale && !(precision && has(ElementType::f16)))
    throw InvalidArgument(".loss_scale has no effect: only float16 parameters with Precision use it; omit it", context);
}

/// Checks what one rank passes to a training, before anything is communicated.
/// @throws InvalidArgument, or InvalidState for a parameter of another training
template <MemorySpace Space>
void check_arguments(const std::vector<ParameterEntry<Space>>& entries, const AnyOptimizer<Space>& optimizer,
                     const TrainingPolicies& policies, const DataParallelOptions& options,
                     const ErrorContext& context) {
  const auto fail = [&](const std::string& message) { throw InvalidArgument(message, context); };
  optimizer.validate();
  if (options.broadcast_from < 0 || options.broadcast_from >= context.size)
    fail("invalid .broadcast_from = " + std::to_string(options.broadcast_from) + ": must be in [0, " +
         std::to_string(context.size) + ")");
  if (is_nan(options.clip_norm) || options.clip_norm <= 0)
    fail("invalid .clip_norm = " + shortest(options.clip_norm) + ": must be > 0; omit it to disable clipping");
  if (policies.hybrid && (options.group_ranks < 1 || context.size % options.group_ranks != 0))
    fail("invalid .group_ranks = " + std::to_string(options.group_ranks) + ": Hybrid needs a divisor of the " +
         std::to_string(context.size) + " ranks");
  if (policies.virtual_ranks % context.size != 0)
    fail("the number of ranks, " + std::to_string(context.size) + ", does not divide the " +
         std::to_string(policies.virtual_ranks) + " virtual ranks of Reproducible<" +
         std::to_string(policies.virtual_ranks) + ">; use a number of ranks that does");
  if (!policies.hybrid && options.group_ranks != 0)
    fail(".group_ranks has no effect without the policy Hybrid; add Hybrid, or omit .group_ranks");
  if (const double scale = options.first_loss_scale(); !is_finite(scale) || scale <= 0)
    fail("invalid .loss_scale = " + shortest(scale) + ": must be finite and > 0; 1 disables loss scaling");
  if (!HostAccessible<Space> && !options.state_folder.empty())
    fail(".state_folder supports host memory only; omit it, or On<Space>");
  if (!reaches_staging<Space> && options.offload)
    fail(".offload supports GPU memory only; omit it, or set .state_folder instead");
  check_list(entries, context);
  std::vector<ElementType> trained;
  for (const auto& entry : entries) {
    if (entry.trained()) trained.push_back(entry.type());
    if (entry.options.group.weight_decay && !optimizer.decays)
      fail("the group of '" + entry.name + "' sets .weight_decay, but the optimizer has no weight decay");
    if (optimizer.takes_whole == TakesWhole::all && entry.trained() && entry.options.rows == 0)
      fail("the optimizer requires matrix parameters, but '" + entry.name +
           "' has no .rows set; set .rows, or use distx::Mixed{distx::Muon{}, distx::AdamW{}}");
    if (policies.stage >= 2 && !entry.owned && entry.trained())
      fail("'" + entry.name + "' is borrowed, but " + policies.to_string() +
           " allocates gradients itself; make it a distx::Parameter, or use ZeRO<0> or ZeRO<1>");
  }
  if (!policies.part_of_model) check_effects(trained, policies, options, context);
}

/// Compares what the ranks pass to a training. Collective over `comm`.
/// @throws MismatchError on every rank, with the name of what differs and both values
template <MemorySpace Space>
void check_same_training(AnyCommunicator<Space>& comm, const std::vector<ParameterEntry<Space>>& entries,
                         const AnyOptimizer<Space>& optimizer, const TrainingPolicies& policies,
                         const DataParallelOptions& options, const ErrorContext& context) {
  const auto yes_no = [](bool value) { return std::string(value ? "true" : "false"); };
  ConsistencyRecord record;
  record.add(".share_weights", yes_no(options.share_weights));  // first, since the stage may follow from it
  record.add("the list of policies", policies.to_string());
  record.add(".bucket_bytes", options.bucket_bytes == unlimited ? "unlimited" : std::to_string(options.bucket_bytes));
  record.add(".overlap", yes_no(options.overlap));
  record.add(".allow_unused", yes_no(options.allow_unused));
  record.add(".broadcast_from", std::to_string(options.broadcast_from));
  record.add(".clip_norm", shortest(options.clip_norm));
  record.add(".map_weights", yes_no(options.map_weights));
  record.add(".group_ranks", std::to_string(options.group_ranks));
  record.add(".loss_scale", shortest(options.first_loss_scale()));
  record.add(".skip_nonfinite", yes_no(options.skip_nonfinite));
  record.add(".guard_every", std::to_string(options.guard_every));
  record.add(".average_over_active", yes_no(options.average_over_active));
  record.add(".offload", yes_no(options.offload));
  record.add("the optimizer", optimizer.description);
  record.add("the treatment of subnormal numbers", keeps_subnormals() ? "kept" : "flushed to zero");
  for (std::size_t i = 0; i < entries.size(); ++i) record.add("parameter " + std::to_string(i), entries[i].to_string());
  check_consistency(comm, record, "construct the same training on every rank", context);
}

/// Compares what the ranks pass to a MeshParallel, besides what is compared along the data axis. Collective over the
/// mesh.
/// @throws MismatchError on every rank, with the name of what differs and both values
template <MemorySpace Space>
void check_same_mesh_training(AnyCommunicator<Space>& comm, const std::vector<MeshParameter>& parameters,
                              const std::string& optimizer, const DataParallelOptions& options,
                              const ErrorContext& context) {
  ConsistencyRecord record;
  record.add(".clip_norm", shortest(options.clip_norm));
  record.add(".skip_nonfinite", options.skip_nonfinite ? "true" : "false");
  record.add("the optimizer", optimizer);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& each = parameters[i];
    std::string shape;
    for (const std::size_t extent : each.part.shape) shape += (shape.empty() ? "" : " x ") + std::to_string(extent);
    record.add("weight " + std::to_string(i), "'" + each.name + "' of " + shape + (each.trained ? "" : ", frozen") +
                                                  (each.rows > 0 ? ", .rows " + std::to_string(each.rows) : ""));
  }
  check_consistency(comm, record, "construct the same training on every rank", context);
}

/// Checks the options of each step, on this rank and, from time to time, against the other ranks.
///
/// The learning rates and numbers of micro-batches of all steps are compared, but not in every step, so that a step
/// sends no more than it must: in the first step, in every 32nd after it, and when `compare` is called.
template <MemorySpace Space>
class StepOptionsCheck {
 public:
  static constexpr std::size_t interval = 32;

  /// @param skips  whether a loss that is not finite only makes the step be skipped
  /// @throws InvalidArgument, or NonFiniteError for the loss
  static void check(const StepOptions& options, bool skips, const ErrorContext& context) {
    if (const double rate = options.learning_rate; !is_finite(rate) || rate < 0)
      throw InvalidArgument("invalid .learning_rate = " + shortest(rate) + ": must be finite and >= 0", context);
    if (!is_finite(options.loss) && !skips)
      throw NonFiniteError("the loss of rank " + std::to_string(context.rank) + " is " + shortest(options.loss) +
                               "; lower the learning rate, check this step's data, or set .skip_nonfinite; losses of "
                               "float16 parameters are scaled by Precision",
                           context);
  }

  /// Notes the options of a step, and compares those noted in the first and in every 32nd step. Collective then.
  /// @param micro_batches  of the step; 0 if they may differ between the ranks
  /// @throws MismatchError on every rank, with the step and both values
  void note(AnyCommunicator<Space>& comm, const StepOptions& options, std::size_t micro_batches,
            const ErrorContext& context) {
    if (comm.size() == 1) return;
    noted_.push_back({options.learning_rate, micro_batches});
    if (steps_++ % interval == 0) compare(comm, context);
  }
  /// Compares the options noted since the last comparison. Collective over `comm`.
  void compare(AnyCommunicator<Space>& comm, const ErrorContext& context) {
    if (noted_.empty()) return;
    ConsistencyRecord record;
    for (std::size_t i = 0; i < noted_.size(); ++i) {
      const std::string step = " of step " + std::to_string(steps_ - noted_.size() + i);
      record.add(".learning_rate" + step, shortest(noted_[i].learning_rate));
      record.add("the number of micro-batches" + step, std::to_string(noted_[i].micro_batches));
    }
    noted_.clear();
    check_consistency(comm, record, "pass the same options, and make the same number of micro-batches, on every rank",
                      context);
  }

 private:
  struct Noted {
    double learning_rate;
    std::size_t micro_batches;
  };

  std::size_t steps_ = 0;
  std::vector<Noted> noted_;
};

}  // namespace distx::inline DISTX_ABI::detail
