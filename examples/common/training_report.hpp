// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <distx/comm/any_communicator.hpp>
#include <distx/observe/ledger.hpp>
#include <distx/observe/memory_ledger.hpp>

#include "make_training.hpp"
#include "timed_training.hpp"
#include "training_flags.hpp"

namespace examples {

/// What a training has cost: the parts of a report that no model is needed for.
struct TrainingCost {
  StepTimes times;                          ///< of one step, in seconds, the mean over ranks
  std::vector<distx::MemoryLedger> memory;  ///< of every rank
  distx::Ledger traffic;                    ///< of all ranks together

  /// Gathers every rank's. Collective.
  /// @param times the sums over `steps`
  TrainingCost(distx::AnyCommunicator<>& comm, const StepTimes& times, std::size_t steps,
               const distx::MemoryLedger& memory, const distx::Ledger& traffic);

  /// A line to print.
  [[nodiscard]] std::string to_string() const;
  /// `parameters`, `ranks`, `seconds_per_step`, `memory` of each rank beside the `plan` by the formula, `traffic`.
  [[nodiscard]] nlohmann::json json(const TrainingFlags& flags, const WeightCounts& weights) const;
};

}  // namespace examples
