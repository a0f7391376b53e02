// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "training_report.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include <fmt/core.h>

#include <distx/comm/decorators/sum_over_ranks.hpp>
#include <distx/comm/movement.hpp>

#include "ledger_json.hpp"
#include "train_step.hpp"

namespace examples {

namespace {

std::vector<distx::observe::MemoryLedger> gather_ledgers(distx::AnyCommunicator<>& comm,
                                                         const distx::observe::MemoryLedger& mine) {
  using Numbers = std::array<std::uint64_t, sizeof(distx::observe::MemoryLedger) / sizeof(std::uint64_t)>;
  const auto ranks = static_cast<std::size_t>(comm.size());
  const auto numbers = std::bit_cast<Numbers>(mine);
  std::vector<std::uint64_t> of_all(ranks * numbers.size());
  distx::all_gather(comm, numbers, of_all);
  std::vector<distx::observe::MemoryLedger> ledgers;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    Numbers theirs{};
    std::copy_n(of_all.data() + rank * theirs.size(), theirs.size(), theirs.begin());
    ledgers.push_back(std::bit_cast<distx::observe::MemoryLedger>(theirs));
  }
  return ledgers;
}

}  // namespace

TrainingCost::TrainingCost(distx::AnyCommunicator<>& comm, const StepTimes& sums, std::size_t steps,
                           const distx::observe::MemoryLedger& mine, const distx::observe::Ledger& sent)
    : memory(gather_ledgers(comm, mine)),
      traffic(distx::sum_over_ranks(sent, comm)),
      share_memory(comm.backend() == "threads" || comm.backend() == "shm") {
  const auto of_a_step = [&](double sum) { return average_over_ranks(comm, sum) / static_cast<double>(steps); };
  times = {of_a_step(sums.compute), of_a_step(sums.communication), of_a_step(sums.update)};
}

std::string TrainingCost::to_string() const {
  const auto most = std::ranges::max(memory, {}, [](const auto& ledger) { return ledger.total.peak; });
  return fmt::format(
      "a step of {:.1f} ms: {:.1f} compute, {:.1f} exposed communication, {:.1f} update; at most {:.1f} MiB on a rank",
      1e3 * (times.compute + times.communication + times.update), 1e3 * times.compute, 1e3 * times.communication,
      1e3 * times.update, static_cast<double>(most.total.peak) / 0x1p20);
}

nlohmann::json TrainingCost::json(const TrainingFlags& flags, const WeightCounts& weights) const {
  auto ledgers = nlohmann::json::array();
  for (const auto& ledger : memory) ledgers.push_back(ledger_json(ledger));
  const auto planned = plan(flags, weights, static_cast<int>(memory.size()), share_memory);
  nlohmann::json report{
      {"seconds_per_step",
       {{"compute", times.compute}, {"exposed_communication", times.communication}, {"update", times.update}}},
      {"parameters", weights.all},
      {"ranks", memory.size()},
      {"memory", ledgers},
      {"plan",
       {{"weights", planned.weights},
        {"gradients", planned.gradients},
        {"optimizer", planned.optimizer},
        {"offloaded", planned.offloaded},
        {"total", planned.total()},
        {"sent", planned.sent}}},
      {"traffic", ledger_json(traffic)}};
  if (flags.compress != "none" && flags.compress != "bf16") report["plan"].erase("sent");  // the formula has none
  return report;
}

}  // namespace examples
