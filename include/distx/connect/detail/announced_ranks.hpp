// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "distx/connect/detail/variables.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The source of variables: distx-run, distx-ranks or a user; torchrun or others that set PyTorch's; mpirun or mpiexec;
/// a launcher with PMIx; srun.
enum class LauncherFamily { distx, torch, mpi, pmix, slurm };

/// The ranks that the variables of one launcher announce to each of them, whether its header is included or not.
struct AnnouncedRanks {
  LauncherFamily family;
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
  const auto add = [&](LauncherFamily family, const char* size, const char* rank, bool at_least = false) {
    if (auto known = announced_number(size)) all.push_back({family, *known, announced_number(rank), at_least});
  };
  add(LauncherFamily::distx, "DISTX_SIZE", "DISTX_RANK");
  add(LauncherFamily::torch, "WORLD_SIZE", "RANK");
  add(LauncherFamily::mpi, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK");
  add(LauncherFamily::mpi, "PMI_SIZE", "PMI_RANK");
  add(LauncherFamily::mpi, "MPI_LOCALNRANKS", "PMI_RANK", true);
  if (is_slurm_task()) add(LauncherFamily::slurm, slurm_size_variable(), "SLURM_PROCID");
  if (auto rank = announced_number("PMIX_RANK"); rank && is_set("PMIX_NAMESPACE"))
    all.push_back({LauncherFamily::pmix, {rank->value + 1, rank->source}, rank, true});
  return all;
}

/// Returns the rank that mpirun, mpiexec or srun gave this process as one of `size`; null if none of them did.
[[nodiscard]] inline std::optional<SourcedNumber> rank_announced_for(int size) {
  for (const auto& one : announced_ranks())
    if ((one.family == LauncherFamily::mpi || one.family == LauncherFamily::slurm) && !one.at_least && one.rank &&
        one.size.value == size)
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

/// Returns the first that a family announces.
[[nodiscard]] inline std::optional<AnnouncedRanks> announced_by_family(LauncherFamily family) {
  for (const auto& one : announced_ranks())
    if (one.family == family) return one;
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
  using Family = LauncherFamily;
  if (other.family == chosen.family && chosen.family != Family::mpi) return std::nullopt;
  if (other.size.value <= 1 || (other.at_least && other.size.value <= chosen.size.value)) return std::nullopt;
  if (chosen.family == Family::torch && other.family != Family::distx) {
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
  if (chosen.family == Family::mpi && other.family == Family::slurm && chosen.size.value > 1) return std::nullopt;
  if (chosen.size.value != other.size.value) return std::pair(chosen.size.source, other.size.source);
  if (chosen.rank && other.rank && chosen.rank->value != other.rank->value)
    return std::pair(chosen.rank->source, other.rank->source);
  return std::nullopt;
}

/// Names the ways to use the launchers of a family, for messages.
struct LauncherAdvice {
  std::string_view header;  ///< the one whose launcher connects their ranks
  std::string_view scheme;  ///< of the URL that chooses them; empty if it needs more
  std::vector<const char*> variables;
};
[[nodiscard]] inline const LauncherAdvice& advice_of(LauncherFamily family) {
  static const LauncherAdvice all[] = {
      {"distx/file.hpp", "", {"DISTX_CONNECT", "DISTX_FILE", "DISTX_RANK", "DISTX_SIZE"}},
      {"distx/tcp.hpp", "env://", {"WORLD_SIZE"}},
      {"distx/mpi.hpp", "mpi://", {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"}},
      {"distx/pmix.hpp", "pmix://", {"PMIX_RANK"}},
      {"distx/tcp.hpp", "slurm://", {"SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"}},
  };
  return all[static_cast<std::size_t>(family)];
}
/// @throws ConnectError if another launcher's variables announce ranks that are not those of `chosen`
inline void check_other_launchers(const AnnouncedRanks& chosen) {
  for (const auto& other : announced_ranks()) {
    const auto sources = contradiction(chosen, other);
    if (!sources) continue;
    std::string variables, schemes;
    for (const auto family : {chosen.family, other.family}) {
      const auto& advice = advice_of(family);
      for (const auto name : advice.variables)
        if (is_set(name)) variables.append(variables.empty() ? "" : ", ").append(name);
      if (!advice.scheme.empty() && !schemes.ends_with(advice.scheme))
        schemes.append(schemes.empty() ? ", or choose by DISTX_CONNECT=" : " or ").append(advice.scheme);
    }
    throw ConnectError(sources->first + " contradicts " + sources->second +
                           ": two launchers announce different ranks; start the ranks by one of them, unset what the "
                           "other sets (of " +
                           variables.append(")").append(schemes),
                       {.operation = "connect"});
  }
}

}  // namespace distx::inline DISTX_ABI::detail
