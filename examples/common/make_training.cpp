// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "make_training.hpp"

#include <type_traits>

#include <distx/distx.hpp>
#include <distx/parallel/hooks/power_sgd.hpp>
#include <distx/parallel/hooks/quantized_blocks.hpp>

namespace examples {

namespace {

/// Calls f(optimizer) with the one that is chosen.
template <class F>
auto with_optimizer(const TrainingFlags& flags, F&& f) {
  if (flags.optimizer == "sgd") return f(distx::SGD{.momentum = 0.9, .weight_decay = 1e-4});
  if (flags.optimizer == "lamb") return f(distx::LAMB{.beta2 = 0.99, .weight_decay = 0.01});
  if (flags.optimizer == "muon")
    return f(distx::Mixed{distx::Muon{.weight_decay = 0.01}, distx::AdamW{.beta2 = 0.99, .weight_decay = 0.01}});
  return f(distx::AdamW{.beta2 = 0.99, .weight_decay = 0.01});
}

distx::DataParallelOptions options_of(const TrainingFlags& flags) {
  return {.bucket_bytes = flags.bucket_kib << 10,
          .stage = flags.zero,
          .clip_norm = flags.clip,
          .map_weights = !flags.gather_weights};
}

template <class Training, class... Policies, class Parameters>
Training make(distx::AnyCommunicator<>& comm, const Parameters& parameters, const TrainingFlags& flags) {
  return with_optimizer(flags, [&](const auto& optimizer) {
    using DataParallel = distx::DataParallel<distx::ZeRO<distx::Dynamic>, Policies...>;
    return Training(DataParallel(comm, parameters, optimizer, options_of(flags)));
  });
}

/// Makes a training with Precision for 16-bit weights, whose gradients are reduced in the weights' type.
template <class Weight, class... Policies, class Parameters>
TimedTraining<Weight> make_for(distx::AnyCommunicator<>& comm, const Parameters& parameters,
                               const TrainingFlags& flags) {
  if constexpr (sizeof(Weight) == 2)
    return make<TimedTraining<Weight>, distx::Precision<Weight>, Policies...>(comm, parameters, flags);
  else
    return make<TimedTraining<Weight>, Policies...>(comm, parameters, flags);
}

/// Calls f.operator()<Policies...>() with the policy of the flag, if there is one.
template <class F>
auto with_compression(const TrainingFlags& flags, F&& f) {
  if (flags.compress == "bf16") return f.template operator()<distx::Compress<distx::bfloat16>>();
  if (flags.compress == "int8") return f.template operator()<distx::Compress<distx::hooks::QuantizedBlocks<>>>();
  if (flags.compress == "powersgd") return f.template operator()<distx::Compress<distx::hooks::PowerSGD<4, 30>>>();
  return f.template operator()<>();
}

/// Makes a training with or without micro-batches.
template <class Weight, class... Policies>
TimedTraining<Weight> make_in_parts(distx::AnyCommunicator<>& comm,
                                    const std::vector<const distx::Parameter<Weight>*>& parameters,
                                    const TrainingFlags& flags) {
  if (flags.accumulate == 1) return make_for<Weight, Policies...>(comm, parameters, flags);
  // Where gradients are whole anyway, they are reduced once a step.
  if (flags.zero <= 1) return make_for<Weight, distx::Accumulate<distx::Local>, Policies...>(comm, parameters, flags);
  return make_for<Weight, distx::Accumulate<distx::Sharded>, Policies...>(comm, parameters, flags);
}

}  // namespace

template <class Weight>
TimedTraining<Weight> make_training(distx::AnyCommunicator<> comm,
                                    const std::vector<const distx::Parameter<Weight>*>& parameters,
                                    const TrainingFlags& flags) {
  if constexpr (sizeof(Weight) == 4)
    if (flags.elastic) return make_for<Weight, distx::Replicate>(comm, parameters, flags);
  if (flags.reproducible)
    return make_for<Weight, distx::Reproducible<TrainingFlags::virtual_ranks>>(comm, parameters, flags);
  if constexpr (sizeof(Weight) == 2)
    return make_in_parts<Weight>(comm, parameters, flags);
  else
    return with_compression(
        flags, [&]<class... Policies>() { return make_in_parts<Weight, Policies...>(comm, parameters, flags); });
}

template TimedTraining<float> make_training(distx::AnyCommunicator<>,
                                            const std::vector<const distx::Parameter<float>*>&, const TrainingFlags&);
template TimedTraining<distx::bfloat16> make_training(distx::AnyCommunicator<>,
                                                      const std::vector<const distx::Parameter<distx::bfloat16>*>&,
                                                      const TrainingFlags&);

BorrowedTraining make_training(distx::AnyCommunicator<> comm, const std::vector<distx::ParameterRef<float>>& parameters,
                               const TrainingFlags& flags) {
  if (flags.elastic) return make<BorrowedTraining, distx::Replicate>(comm, parameters, flags);
  return with_compression(
      flags, [&]<class... Policies>() { return make<BorrowedTraining, Policies...>(comm, parameters, flags); });
}

template <class... Policies>
MeshTraining<Policies...> make_mesh_training(const Grid& mesh, const distx::TensorParameterList<>& parameters,
                                             const TrainingFlags& flags) {
  using Training = MeshTraining<Policies...>;
  return with_optimizer(flags, [&]<class Optimizer>(const Optimizer& optimizer) -> Training {
    if constexpr (!distx::ElementwiseOptimizer<Optimizer>)
      throw distx::Error("this optimizer looks at whole weights");
    else if (flags.accumulate == 1)
      return Training(typename Training::Whole(mesh, parameters, optimizer, options_of(flags)));
    else
      return Training(typename Training::Parts(mesh, parameters, optimizer, options_of(flags)));
  });
}

template MeshTraining<> make_mesh_training(const Grid&, const distx::TensorParameterList<>&, const TrainingFlags&);
template MeshTraining<distx::Precision<distx::bfloat16>> make_mesh_training(const Grid&,
                                                                            const distx::TensorParameterList<>&,
                                                                            const TrainingFlags&);

distx::TrainingPlan plan(const TrainingFlags& flags, const WeightCounts& weights, int ranks, bool share_memory) {
  const auto one = [&]<class Optimizer>(std::size_t count, const Optimizer&) {
    const auto bytes = flags.short_weights() ? distx::mixed_precision<Optimizer> : distx::full_precision<Optimizer>;
    return count == 0 ? distx::TrainingPlan{}
                      : distx::plan(count, static_cast<std::uint64_t>(ranks), flags.zero, bytes,
                                    {.map_weights = share_memory && !flags.gather_weights,
                                     .sent_gradient_bytes = flags.compress == "bf16" ? 2U : 0U});
  };
  return with_optimizer(flags, [&](const auto& optimizer) {
    if constexpr (requires { optimizer.matrices; })
      return one(weights.in_matrices, optimizer.matrices) + one(weights.all - weights.in_matrices, optimizer.others);
    else
      return one(weights.all, optimizer);
  });
}

}  // namespace examples
