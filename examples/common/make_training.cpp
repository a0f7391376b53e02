// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "make_training.hpp"

#include <type_traits>

#include <distx/distx.hpp>
#include <distx/parallel/hooks/power_sgd.hpp>
#include <distx/parallel/hooks/quantized_blocks.hpp>

#include "with_optimizer.hpp"

namespace examples {

namespace {

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
  if constexpr (sizeof(Weight) == 4) {
    if (flags.elastic) return make_for<Weight, distx::Replicate>(comm, parameters, flags);
    if (flags.compress == "weights-int8")
      return make_for<Weight, distx::Compress<float, distx::hooks::QuantizedBlocks<>>>(comm, parameters, flags);
  }
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

distx::TrainingPlan plan(const TrainingFlags& flags, const WeightCounts& weights, int ranks, bool share_memory) {
  const auto one = [&]<class Optimizer>(std::size_t count, const Optimizer&) {
    const auto bytes = flags.short_weights() ? distx::mixed_precision<Optimizer> : distx::full_precision<Optimizer>;
    return count == 0 ? distx::TrainingPlan{}
                      : distx::plan(count, static_cast<std::uint64_t>(ranks), flags.zero, bytes,
                                    {.map_weights = share_memory && !flags.gather_weights,
                                     .sent_gradient_bytes = flags.compress == "bf16" ? 2U : 0U,
                                     .offload = flags.offload || !flags.state_folder.empty()});
  };
  return with_optimizer(flags, [&](const auto& optimizer) {
    if constexpr (requires { optimizer.matrices; })
      return one(weights.in_matrices, optimizer.matrices) + one(weights.all - weights.in_matrices, optimizer.others);
    else
      return one(weights.all, optimizer);
  });
}

}  // namespace examples
