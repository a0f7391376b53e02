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

/// Time, memory and traffic of a training: the parts of a report that do not depend on the model.
struct TrainingCost {
  StepTimes times;                                   ///< of one step, in seconds, the mean over ranks
  std::vector<distx::observe::MemoryLedger> memory;  ///< of every rank
  distx::observe::Ledger traffic;                    ///< of all ranks together
  bool share_memory = false;                         ///< whether ranks read each other's memory

  /// Gathers every rank's. Collective.
  /// @param times the sums over `steps`
  TrainingCost(distx::AnyCommunicator<>& comm, const StepTimes& times, std::size_t steps,
               const distx::observe::MemoryLedger& memory, const distx::observe::Ledger& traffic);

  /// A line to print.
  [[nodiscard]] std::string to_string() const;
  /// `parameters`, `ranks`, `seconds_per_step`, `memory` of each rank, the `plan` of the formula, `traffic`.
  [[nodiscard]] nlohmann::json json(const TrainingFlags& flags, const WeightCounts& weights) const;
};

}  // namespace examples
