// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "distx/connect/connector.hpp"
#include "distx/connect/self.hpp"

namespace distx {

/// Connects programs that one launcher starts; a header that includes a launcher's library registers it.
struct Launcher {
  std::string_view name;    ///< such as "mpi"
  bool (*started_by_it)();  ///< returns whether the environment says that this launcher started the process
  AnyConnector (*connect)(int& argc, char**& argv);
  bool by_name = false;  ///< its variables name distx, so it is asked before launchers that recognize a vendor's
};

namespace detail {

inline std::vector<Launcher>& launchers() {
  static std::vector<Launcher> known;
  return known;
}

inline std::optional<int> environment_number(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end != '\0' || value != static_cast<int>(value)) return std::nullopt;
  return static_cast<int>(value);
}

/// A number of ranks that a launcher has put into the environment, and the variable that holds it.
struct Announced {
  std::string variable;
  int size;
};

inline std::optional<Announced> announced_by(std::initializer_list<const char*> variables) {
  for (const char* name : variables)
    if (const auto size = environment_number(name)) return Announced{name, *size};
  return std::nullopt;
}

/// Open MPI's mpirun; MPICH's and Intel's mpiexec; srun (a batch script outside of srun has no step).
inline std::optional<Announced> announced_mpi_ranks() {
  return announced_by({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS"});
}

/// Writes a line to stderr on the root rank if DISTX_LOG=info.
inline void log_connection(const AnyConnector& connector, std::string_view launcher) {
  const char* level = std::getenv("DISTX_LOG");
  if (level == nullptr || std::string_view(level) != "info" || connector.rank() != connector.root_rank()) return;
  std::fprintf(stderr, "distx: connect: launcher '%.*s', %d ranks, %d on this host\n",
               static_cast<int>(launcher.size()), launcher.data(), connector.size(), connector.local_size());
}

}  // namespace detail

/// Makes a launcher known to `connect()`, before main; returns false if one of its name is known already.
inline bool register_launcher(const Launcher& launcher) {
  for (const auto& known : detail::launchers())
    if (known.name == launcher.name) return false;
  auto& all = detail::launchers();
  all.insert(launcher.by_name ? all.begin() : all.end(), launcher);
  return true;
}

/// Returns a connector for however this program was started: by a launcher, or alone as one rank. Collective.
///
/// Each entry header registers its launcher: <distx/mpi.hpp> mpirun, mpiexec and srun; <distx/file.hpp> the variables
/// DISTX_FILE (a shared folder), DISTX_RANK and DISTX_SIZE, which take precedence over any other launcher's. With
/// DISTX_LOG=info the root rank writes to stderr which launcher was used. Blocks until all ranks have joined.
///
/// @param argc, argv  those of main; the launcher's own arguments may be removed
/// @throws ConnectError if a launcher started several ranks and no included header can connect them: it names the
/// header
///         to include, and the program never runs as N unconnected ranks; and whatever the connector throws
[[nodiscard]] inline AnyConnector connect(int& argc, char**& argv) {
  for (const auto& launcher : detail::launchers())
    if (launcher.started_by_it()) {
      auto connector = launcher.connect(argc, argv);
      detail::log_connection(connector, launcher.name);
      return connector;
    }
  const auto fail = [](const std::string& message) { throw ConnectError(message, {.operation = "connect"}); };
  if (const char* folder = std::getenv("DISTX_FILE");
      folder != nullptr && *folder != '\0' && detail::environment_number("DISTX_SIZE") != 1)
    fail("DISTX_FILE is set but file-based rendezvous is not compiled in: include <distx/file.hpp>");
  if (const auto mpi = detail::announced_mpi_ranks(); mpi && mpi->size > 1)
    fail("an MPI launcher started " + std::to_string(mpi->size) + " ranks (" + mpi->variable +
         " is set) but MPI is not compiled in: include <distx/mpi.hpp>");
  if (const auto torch = detail::announced_by({"WORLD_SIZE"}); torch && torch->size > 1)
    fail("torchrun started " + std::to_string(torch->size) +
         " ranks (WORLD_SIZE is set), which distx cannot connect: start the program with mpirun and include "
         "<distx/mpi.hpp>");
  AnyConnector alone = SelfConnector();
  detail::log_connection(alone, "none");
  return alone;
}

/// Does the same for a program whose arguments no launcher reads.
[[nodiscard]] inline AnyConnector connect() {
  int argc = 0;
  char* arguments[] = {nullptr};
  char** argv = arguments;
  return connect(argc, argv);
}

}  // namespace distx
