// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <vector>

#include <distx/comm/any_communicator.hpp>
#include <distx/training.hpp>

#include "timed_training.hpp"
#include "training_flags.hpp"

namespace examples {

/// A training by the flags. Weight is float, or bfloat16 for which the optimizer keeps float. Collective.
template <class Weight>
TimedTraining<Weight> make_training(distx::AnyCommunicator<> comm,
                                    const std::vector<const distx::Parameter<Weight>*>& parameters,
                                    const TrainingFlags& flags);

/// A training of arrays that stay where they are: the model's own.
using BorrowedTraining = TimedTraining<float, std::chrono::steady_clock, distx::ParameterRef<float>>;

/// The same of arrays that stay where they are.
/// @pre stage 0 or 1, float32, no micro-batches
BorrowedTraining make_training(distx::AnyCommunicator<> comm, const std::vector<distx::ParameterRef<float>>& parameters,
                               const TrainingFlags& flags);

/// The number of weights of a model.
struct WeightCounts {
  std::size_t all = 0;
  std::size_t in_matrices = 0;  ///< those that an optimizer of matrices takes
};

/// Returns the memory and traffic of each rank that the formula predicts for these flags.
/// @param share_memory  whether the ranks can read each other's memory
distx::TrainingPlan plan(const TrainingFlags& flags, const WeightCounts& weights, int ranks, bool share_memory);

}  // namespace examples
