// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "distx/connect/detail/variables.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The ranks that the variables of one launcher announce to each of them, whether its header is included or not.
struct AnnouncedRanks {
  /// The launcher that connects them: "file" for the variables of distx-run, distx-ranks or a user; "env" for those of
  /// torchrun or others that set PyTorch's; "mpi" for those of mpirun or mpiexec; "pmix"; "slurm" for those of srun.
  std::string_view launcher;
  SourcedNumber size;
  std::optional<SourcedNumber> rank;
  bool at_least = false;  ///< there may be more
};

[[nodiscard]] inline std::optional<SourcedNumber> announced_number(const char* name) {
  const auto value = parse_int(variable(name));
  if (!value) return std::nullopt;
  return SourcedNumber{*value, std::string(name) + "=" + variable(name)};
}

/// Returns whether srun started this process as one of the tasks of a step.
///
/// A batch script has SLURM_PROCID=0 and the SLURM_NTASKS of its allocation, but no step. Slurm reserves the largest
/// ids of steps: the shell of salloc may run in one, next to the tasks that it starts.
[[nodiscard]] inline bool is_slurm_task() {
  const auto step = parse_number<std::uint32_t>(variable("SLURM_STEP_ID"));
  if (step && *step >= 0xfffffff0u) return false;
  return is_set("SLURM_STEP_NUM_TASKS") || (is_set("SLURM_PROCID") && is_set("SLURM_STEP_NODELIST"));
}

[[nodiscard]] inline const char* slurm_size_variable() {
  return is_set("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
}

/// Returns what the variables of every launcher announce; malformed ones are their launcher's to refuse.
[[nodiscard]] inline std::vector<AnnouncedRanks> announced_ranks() {
  std::vector<AnnouncedRanks> all;
  const auto add = [&](std::string_view launcher, const char* size, const char* rank, bool at_least = false) {
    if (auto known = announced_number(size)) all.push_back({launcher, *known, announced_number(rank), at_least});
  };
  add("file", "DISTX_SIZE", "DISTX_RANK");
  add("env", "WORLD_SIZE", "RANK");
  add("mpi", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK");
  add("mpi", "PMI_SIZE", "PMI_RANK");
  add("mpi", "MPI_LOCALNRANKS", "PMI_RANK", true);
  if (is_slurm_task()) add("slurm", slurm_size_variable(), "SLURM_PROCID");
  if (auto rank = announced_number("PMIX_RANK"); rank && is_set("PMIX_NAMESPACE"))
    all.push_back({"pmix", {rank->value + 1, rank->source}, rank, true});
  return all;
}

/// Returns the rank that mpirun, mpiexec or srun gave this process as one of `size`; null if none of them did.
[[nodiscard]] inline std::optional<SourcedNumber> rank_announced_for(int size) {
  for (const auto& one : announced_ranks())
    if ((one.launcher == "mpi" || one.launcher == "slurm") && !one.at_least && one.rank && one.size.value == size)
      return one.rank;
  return std::nullopt;
}

/// This process's rank, and the number of ranks.
struct SourcedRank {
  SourcedNumber rank, size;
};
/// Returns what two variables of a launcher say. A job script may export everything but the rank, which differs.
/// @throws ConnectError if one is missing or invalid
[[nodiscard]] inline SourcedRank rank_from(const Variables& variables, const char* rank_name, const char* size_name) {
  auto size = variables.number(size_name, 1, most_ranks);
  const auto announced = is_set(rank_name) ? std::nullopt : rank_announced_for(size.value);
  auto rank = announced ? *announced : variables.number(rank_name, 0, most_ranks - 1);
  variables.check_rank(rank, size);
  return {std::move(rank), std::move(size)};
}

/// Returns the first that the variables of a launcher announce.
[[nodiscard]] inline std::optional<AnnouncedRanks> announced_to(std::string_view launcher) {
  for (const auto& one : announced_ranks())
    if (one.launcher == launcher) return one;
  return std::nullopt;
}

/// Returns the sources of two numbers by which `other` announces ranks that are not those of `chosen`; null if there
/// are none.
///
/// One launcher may run inside another that starts one process per host: torchrun's agents, which GROUP_WORLD_SIZE
/// counts; others that set PyTorch's variables, as tasks of srun or mpirun, each for the same number of consecutive
/// ranks; mpirun's daemons as tasks of srun.
[[nodiscard]] inline std::optional<std::pair<std::string, std::string>> contradiction(const AnnouncedRanks& chosen,
                                                                                      const AnnouncedRanks& other) {
  if (other.launcher == chosen.launcher && chosen.launcher != "mpi") return std::nullopt;
  if (other.size.value <= 1 || (other.at_least && other.size.value <= chosen.size.value)) return std::nullopt;
  if (chosen.launcher == "env" && other.launcher != "file") {
    if (const auto agents = announced_number("GROUP_WORLD_SIZE")) {
      if (agents->value > 1) return std::nullopt;
      return std::pair(agents->source, other.size.source);
    }
    if (chosen.rank && other.size.value < chosen.size.value && chosen.size.value % other.size.value == 0) {
      const int per_process = chosen.size.value / other.size.value;
      if (!other.rank || chosen.rank->value / per_process == other.rank->value) return std::nullopt;
      return std::pair(chosen.rank->source, other.rank->source);
    }
  }
  if (chosen.launcher == "mpi" && other.launcher == "slurm" && chosen.size.value > 1) return std::nullopt;
  if (chosen.size.value != other.size.value) return std::pair(chosen.size.source, other.size.source);
  if (chosen.rank && other.rank && chosen.rank->value != other.rank->value)
    return std::pair(chosen.rank->source, other.rank->source);
  return std::nullopt;
}

/// The header that registers a launcher, and the variables that announce its ranks, for messages.
struct LauncherAdvice {
  std::string_view launcher;
  const char* header;
  std::vector<const char*> variables;
};
/// Returns null if no header registers a launcher of that name.
[[nodiscard]] inline const LauncherAdvice* advice_on(std::string_view launcher) {
  static const LauncherAdvice all[] = {
      {"file", "<distx/file.hpp>", {"DISTX_CONNECT", "DISTX_FILE", "DISTX_RANK", "DISTX_SIZE"}},
      {"env", "<distx/tcp.hpp>", {"WORLD_SIZE"}},
      {"mpi", "<distx/mpi.hpp>", {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"}},
      {"pmix", "<distx/pmix.hpp>", {"PMIX_RANK"}},
      {"slurm", "<distx/tcp.hpp>", {"SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"}},
      {"tcp", "<distx/tcp.hpp>", {}},
  };
  const auto found = std::ranges::find(all, launcher, &LauncherAdvice::launcher);
  return found == std::end(all) ? nullptr : found;
}
/// @throws ConnectError if another launcher's variables announce ranks that are not those of `chosen`
inline void check_other_launchers(const AnnouncedRanks& chosen) {
  for (const auto& other : announced_ranks()) {
    const auto sources = contradiction(chosen, other);
    if (!sources) continue;
    std::string variables, schemes;
    for (const auto launcher : {chosen.launcher, other.launcher}) {
      for (const auto name : advice_on(launcher)->variables)
        if (is_set(name)) variables.append(variables.empty() ? "" : ", ").append(name);
      const auto scheme = std::string(launcher) + "://";
      if (launcher != "file" && !schemes.ends_with(scheme))
        schemes.append(schemes.empty() ? ", or choose by DISTX_CONNECT=" : " or ").append(scheme);
    }
    throw ConnectError(sources->first + " contradicts " + sources->second +
                           ": two launchers announce different ranks; start the ranks by one of them, unset what the "
                           "other sets (of " +
                           variables.append(")").append(schemes),
                       {.operation = "connect"});
  }
}

}  // namespace distx::inline DISTX_ABI::detail
