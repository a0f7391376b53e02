// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>
#include <optional>
#include <type_traits>

#include "distx/core/space.hpp"
#include "distx/parallel/detail/base/training_policies.hpp"
#include "distx/parallel/hooks/gradient_hook.hpp"

namespace distx::inline DISTX_ABI {

/// The policy for the stage of ZeRO (arXiv 1910.02054), which shards training state across ranks.
///
/// Stage 0, the default: nothing. 1: the optimizer's states. 2: also the gradients, which have memory only while they
/// are needed. 3: also the weights, which are whole only in the scopes of `unshard`. `ZeRO<Dynamic>`: the stage is
/// `.stage` of the options. The stage does not change the results. Stages 2 and 3 need owned Parameters.
template <int Stage>
struct ZeRO {
  static constexpr int stage = Stage;
};

/// The stage of `ZeRO<Dynamic>`, which is chosen at run time.
inline constexpr int Dynamic = -1;

/// The policy for the memory space of parameters and gradients; `On<Host>` is the default.
template <MemorySpace Space>
struct On {
  using space = Space;
};

/// `Accumulate<Local>`: gradients accumulate unreduced on each rank and are reduced with the last micro-batch. Stages 0
/// and 1 only.
struct Local {};
/// `Accumulate<Sharded>`: every micro-batch is reduced, and this rank's shard accumulates the results. It needs memory
/// for one more shard of the gradients, and sends one more set of messages per micro-batch.
struct Sharded {};

/// The policy for several micro-batches per step, each in a scope of `micro_batch`.
///
/// Gradients of micro-batches are added, not averaged: divide each loss by the number of micro-batches for the mean.
template <class How>
struct Accumulate {
  static_assert(std::is_same_v<How, Local> || std::is_same_v<How, Sharded>,
                "distx::Accumulate: the argument must be Local or Sharded");
};

/// The policy for 16-bit parameters: the optimizer updates float master weights, of which each rank holds its shard,
/// and gradients are reduced in `Communication`: bfloat16, float16 or float, which costs a converted copy in flight.
///
/// It applies to trained parameters of bfloat16 and float16, of which the model must have at least one; others are
/// trained as without it. With float16, multiply the loss by `loss_scale()` before the backward pass. Values that the
/// user writes into such weights during the training are overwritten from the master weights by the next step.
template <class Communication, class Master = float>
struct Precision {
  static_assert(std::is_same_v<Master, float>, "distx::Precision: master weights must be float");
  static_assert(FloatingElement<Communication> && !std::is_same_v<Communication, double>,
                "distx::Precision: the communication dtype must be bfloat16, float16 or float");
};

/// The policy for gradients of float that are averaged lossily, in fewer bytes, and for weights that are gathered so;
/// optimizer and weights stay float.
///
/// `Compress<bfloat16>`, `<float16>`: ranks send and add gradients in this type, also across the groups of Hybrid, as
/// with Precision. Float16 overflows at 65520. Otherwise a GradientHook, such as those of `distx/parallel/hooks/`,
/// which blocks: with a hook, no reduction overlaps with the backward pass. Buckets of other types have the averages of
/// a training without Compress, and so do all on a single rank. Not with Precision or Reproducible; a hook not with
/// Hybrid or a MeshParallel, and in host memory.
///
/// `Compress<Gradients, Weights>`: at stage 3 in host memory, scopes of `unshard` have weights of float as the
/// WeightHook `Weights` encodes them, such as `hooks::QuantizedBlocks<>`. They are gathered as without Compress,
/// prefetched ones in the background, even where `.map_weights` would read them in place. The copies have the same bits
/// on every rank. Shards stay exact, and so do averages, checkpoints, Replicate, `for_each_full_weight` and `release`.
/// On a single rank nothing is encoded. `Compress<float, Weights>` averages gradients as without Compress.
template <class Gradients, class Weights = float>
struct Compress {};

/// The policy for sharding inside groups of `.group_ranks` consecutive ranks, each of which holds a whole model:
/// gradients are reduced inside the groups, then across them. Stages 1 to 3.
struct Hybrid {};

/// The policy for one result at any number of ranks R that divides V: weights have the same bits for the same V
/// micro-batches.
///
/// A step has V / R micro-batches on each rank, each in a scope of `micro_batch`. Micro-batch i of rank r stands for
/// virtual rank r * V / R + i. Gradients are averaged over the virtual ranks, in the order of one binary tree: partial
/// sums of neighbours are added, then those of pairs of neighbours, and so on. Each rank keeps log2(V / R) whole
/// partial gradients, which the ledger counts as gradients. They are exchanged by an all_to_all once in a step.
///
/// Ranks must compute the same gradient from the same micro-batch: same program, same processor features. Not with
/// Accumulate, Hybrid, `announce_batch` or a MeshParallel; in host memory.
/// @tparam V  a power of two
template <int V>
struct Reproducible {};

/// The policy for a training that survives the loss of ranks: each rank also keeps the shards of the rank before it, as
/// they were after the last step, so that `recover` continues without a checkpoint, also on further ranks.
///
/// Memory: three extra shards of weights and optimizer state, which the ledger counts as replicas (its own before the
/// step, and two of the rank before it); at stage 0, where every rank has the whole state, one copy of it. Traffic: one
/// extra shard per step. The copies of a MeshParallel are along its data axis. Not with Hybrid.
struct Replicate {};

namespace detail {

/// The policies of a list as values, and how often it has each kind of them.
struct PolicyList {
  TrainingPolicies values{};
  int others = 0;  ///< types that are not policies
  int stages = 0, spaces = 0, accumulations = 0, precisions = 0, compressions = 0, hybrids = 0, replicates = 0;
  bool host_accessible = true;     ///< the memory space
  bool compresses_somehow = true;  ///< each Compress
  bool has_balanced_tree = true;   ///< each Reproducible
  /// Whether Compress has them: with its sanitizer of null pointers, g++ cannot compare an address in a constant.
  bool hooks_gradients = false, hooks_weights = false;

  template <class P>
  constexpr void add(std::type_identity<P>) {
    ++others;
  }
  template <int Stage>
  constexpr void add(std::type_identity<ZeRO<Stage>>) {
    values.stage = Stage;
    ++stages;
  }
  template <MemorySpace Space>
  constexpr void add(std::type_identity<On<Space>>) {
    host_accessible = HostAccessible<Space>;
    ++spaces;
  }
  constexpr void add(std::type_identity<Accumulate<Local>>) { accumulate(Accumulation::local); }
  constexpr void add(std::type_identity<Accumulate<Sharded>>) { accumulate(Accumulation::sharded); }
  template <int V>
  constexpr void add(std::type_identity<Reproducible<V>>) {
    accumulate(Accumulation::tree);
    values.virtual_ranks = V;
    has_balanced_tree = has_balanced_tree && V > 0 && std::has_single_bit(static_cast<unsigned>(V));
  }
  template <class Communication, class Master>
  constexpr void add(std::type_identity<Precision<Communication, Master>>) {
    values.communication_type = element_type<Communication>;
    ++precisions;
  }
  template <class Gradients, class Weights>
  constexpr void add(std::type_identity<Compress<Gradients, Weights>>) {
    constexpr bool by_type = requires { requires FloatingElement<Gradients> && sizeof(Gradients) == 2; };
    constexpr bool by_hook = hooks::GradientHook<Gradients>, encodes = hooks::WeightHook<Weights>;
    hooks_gradients = hooks_gradients || by_hook;
    hooks_weights = hooks_weights || encodes;
    if constexpr (by_type) values.compressed_type = element_type<Gradients>;
    if constexpr (by_hook) values.hook = &hook_calls<Gradients>;
    if constexpr (encodes) values.weight_hook = &weight_hook_calls<Weights>;
    compresses_somehow = compresses_somehow && (by_type || by_hook || (encodes && std::is_same_v<Gradients, float>)) &&
                         (encodes || std::is_same_v<Weights, float>);
    ++compressions;
  }
  constexpr void add(std::type_identity<Hybrid>) {
    values.hybrid = true;
    ++hybrids;
  }
  constexpr void add(std::type_identity<Replicate>) {
    values.replicate = true;
    ++replicates;
  }

 private:
  constexpr void accumulate(Accumulation how) {
    values.accumulation = how;
    ++accumulations;
  }
};

template <class... Ps>
inline constexpr PolicyList policies_of = [] {
  PolicyList all;
  (all.add(std::type_identity<Ps>()), ...);
  return all;
}();

enum class PolicyFault {
  none,
  no_policy,
  two_stages,
  two_spaces,
  two_accumulations,
  two_precisions,
  no_compression,
  two_compressions,
  compresses_precision,
  hook_in_groups,
  hook_elsewhere,
  two_hybrids,
  two_replicates,
  replicates_hybrid,
  no_stage,
  whole_gradients,
  nothing_sharded,
  nothing_gathered,
  virtual_ranks,
  reproducible_accumulates,
  reproducible_hybrid,
  reproducible_compresses,
  reproducible_elsewhere
};

template <class Space, class... Ps>
struct space_or {
  using type = Space;
};
template <class Space, class S, class... Ps>
struct space_or<Space, On<S>, Ps...> {
  using type = S;
};
template <class Space, class P, class... Ps>
struct space_or<Space, P, Ps...> : space_or<Space, Ps...> {};
/// The space that the policies name, else Host.
template <class... Ps>
using space_of_policies = typename space_or<Host, Ps...>::type;

[[nodiscard]] constexpr PolicyFault policy_fault(const PolicyList& all) {
  using enum PolicyFault;
  const TrainingPolicies& values = all.values;
  const bool reproducible = values.virtual_ranks != 0;
  if (all.others > 0) return no_policy;
  if (all.stages > 1) return two_stages;
  if (all.spaces > 1) return two_spaces;
  if (!all.has_balanced_tree) return virtual_ranks;
  if (all.accumulations > 1) return reproducible ? reproducible_accumulates : two_accumulations;
  if (reproducible && values.hybrid) return reproducible_hybrid;
  if (reproducible && all.compressions > 0) return reproducible_compresses;
  if (reproducible && !all.host_accessible) return reproducible_elsewhere;
  if (all.precisions > 1) return two_precisions;
  if (!all.compresses_somehow) return no_compression;
  if (all.compressions > 1) return two_compressions;
  if (all.compressions > 0 && all.precisions > 0) return compresses_precision;
  if (all.hooks_gradients && values.hybrid) return hook_in_groups;
  if ((all.hooks_gradients || all.hooks_weights) && !all.host_accessible) return hook_elsewhere;
  if (all.hybrids > 1) return two_hybrids;
  if (all.replicates > 1) return two_replicates;
  if (values.replicate && values.hybrid) return replicates_hybrid;
  if (values.stage < Dynamic || values.stage > 3) return no_stage;
  if (values.accumulation == Accumulation::local && values.stage >= 2) return whole_gradients;
  if (values.hybrid && values.stage == 0) return nothing_sharded;
  if (all.hooks_weights && values.stage != 3 && values.stage != Dynamic) return nothing_gathered;
  return none;
}

/// Diagnoses the first fault with one compile error.
///
/// It cannot diagnose a value, as in `DataParallel<1>`: a class template cannot be overloaded, a pack accepts either
/// types or values, and the compiler rejects the argument list before it instantiates anything. Its error says that it
/// expects a type; the user needs `ZeRO<1>`.
template <class... Ps>
constexpr bool diagnose_policies() {
  using enum PolicyFault;
  constexpr PolicyFault fault = policy_fault(policies_of<Ps...>);
  static_assert(fault != no_policy,
                "distx::DataParallel: one of the types is not a policy: policies are ZeRO<0> to ZeRO<3>, "
                "ZeRO<Dynamic>, Accumulate<Local> or <Sharded>, Reproducible<V>, Precision<Communication>, "
                "Compress<Gradients, Weights>, Hybrid, Replicate and On<Space>; run-time settings are "
                "DataParallelOptions");
  static_assert(fault != two_stages, "distx::DataParallel: the policies contain ZeRO twice; keep one stage");
  static_assert(fault != two_spaces,
                "distx::DataParallel: the policies contain On<Space> twice; keep one memory space");
  static_assert(fault != two_accumulations,
                "distx::DataParallel: the policies contain Accumulate twice; keep Local or Sharded");
  static_assert(fault != virtual_ranks,
                "distx::DataParallel: the number of virtual ranks of Reproducible must be a power of two, such as "
                "Reproducible<8>");
  static_assert(fault != reproducible_accumulates,
                "distx::DataParallel: Reproducible says how gradients of micro-batches are added; keep it once, and "
                "remove Accumulate");
  static_assert(fault != reproducible_hybrid,
                "distx::DataParallel: Reproducible does not support Hybrid, which adds gradients in groups of ranks "
                "first; remove one of them");
  static_assert(fault != reproducible_elsewhere,
                "distx::DataParallel: Reproducible supports host memory only; remove it, or On<Space>");
  static_assert(fault != whole_gradients,
                "distx::DataParallel: Accumulate<Local> needs whole gradients, which ZeRO<2> and ZeRO<3> shard; use "
                "Accumulate<Sharded>");
  static_assert(fault != two_precisions, "distx::DataParallel: the policies contain Precision twice; keep one");
  static_assert(fault != no_compression,
                "distx::DataParallel: the argument of Compress must be bfloat16, float16 or a GradientHook, which has "
                "'std::size_t state_size(const hooks::BucketShape&) const' and 'void reduce(const "
                "hooks::GradientBucket&) const'; a second one must be a WeightHook, such as hooks::QuantizedBlocks<>, "
                "and the first one may be float then");
  static_assert(fault != nothing_gathered,
                "distx::DataParallel: the second argument of Compress is for weights that unshard gathers, as at stage "
                "3; use ZeRO<3>, or remove the argument");
  static_assert(fault != two_compressions, "distx::DataParallel: the policies contain Compress twice; keep one");
  static_assert(fault != compresses_precision,
                "distx::DataParallel: Compress is for parameters of float, those of Precision are of 16 bits already; "
                "remove Compress, or use parameters of float and remove Precision");
  static_assert(fault != hook_in_groups,
                "distx::DataParallel: a GradientHook does not support Hybrid, which averages in two groups of ranks; "
                "remove Hybrid, or use Compress<bfloat16>");
  static_assert(
      fault != hook_elsewhere,
      "distx::DataParallel: a GradientHook or WeightHook supports host memory only; use Compress<bfloat16>, or "
      "remove On<Space>");
  static_assert(fault != reproducible_compresses,
                "distx::DataParallel: Reproducible does not support Compress, whose rounding depends on the number of "
                "ranks; remove one of them");
  static_assert(fault != two_hybrids, "distx::DataParallel: the policies contain Hybrid twice; keep one");
  static_assert(fault != two_replicates, "distx::DataParallel: the policies contain Replicate twice; keep one");
  static_assert(
      fault != replicates_hybrid,
      "distx::DataParallel: Replicate does not support Hybrid, whose groups hold copies of each other; remove "
      "one of them");
  static_assert(fault != nothing_sharded, "distx::DataParallel: Hybrid sharding requires ZeRO<1>, ZeRO<2> or ZeRO<3>");
  static_assert(fault != no_stage, "distx::DataParallel: invalid stage of ZeRO: must be 0, 1, 2, 3 or Dynamic");
  return true;
}

/// Whether `DataParallel<Ps...>` exists: all are policies, and no two contradict each other.
template <class... Ps>
concept CompatiblePolicies = policy_fault(policies_of<Ps...>) == PolicyFault::none;

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
