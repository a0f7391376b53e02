// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdlib>
#include <optional>

#include "distx/connect/connector.hpp"
#include "distx/connect/self.hpp"

namespace distx {

/// A way to start that a vendor's header makes known to `connect()`.
struct Launcher {
  std::string_view name;    ///< "mpi"
  bool (*started_by_it)();  ///< looks at the environment
  AnyConnector (*connect)(int& argc, char**& argv);
  bool by_name = false;  ///< its variables are ours: it is asked before those that guess
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

/// The ranks that a launcher of MPI programs says it has started, and the variable that says so.
struct Announced {
  std::string variable;
  int size;
};

inline std::optional<Announced> announced_by(std::initializer_list<const char*> variables) {
  for (const char* name : variables)
    if (const auto size = environment_number(name)) return Announced{name, *size};
  return std::nullopt;
}

/// Open MPI's mpirun, MPICH's and Intel's mpiexec; srun, whose batch script itself has no step.
inline std::optional<Announced> announced_mpi_ranks() {
  return announced_by({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS"});
}

}  // namespace detail

/// Makes a launcher known to `connect()`; vendors' entry headers call it before main.
inline bool register_launcher(const Launcher& launcher) {
  for (const auto& known : detail::launchers())
    if (known.name == launcher.name) return false;
  auto& all = detail::launchers();
  all.insert(launcher.by_name ? all.begin() : all.end(), launcher);
  return true;
}

/// Finds out how this program was started and joins the other ranks: mpirun, or alone.
///
/// With <distx/file.hpp> also ranks that meet in a folder, as the variables DISTX_FILE (the folder), DISTX_RANK and
/// DISTX_SIZE say; these are looked at before any other launcher's. May take out of `argc` and `argv` what the launcher
/// put there. Collective.
/// @throws ConnectError when a launcher has started several ranks and no connector for it is included: it says which
///         header to include, and never leaves N silent worlds of one
[[nodiscard]] inline AnyConnector connect(int& argc, char**& argv) {
  for (const auto& launcher : detail::launchers())
    if (launcher.started_by_it()) return launcher.connect(argc, argv);
  if (const char* folder = std::getenv("DISTX_FILE");
      folder != nullptr && *folder != '\0' && detail::environment_number("DISTX_SIZE") != 1)
    throw ConnectError(
        "this program was started to meet others in a folder (DISTX_FILE is set), and nothing in it "
        "does: include <distx/file.hpp> beside <distx/distx.hpp>",
        {.operation = "connect"});
  if (const auto mpi = detail::announced_mpi_ranks(); mpi && mpi->size > 1)
    throw ConnectError("this program was started as " + std::to_string(mpi->size) + " ranks (" + mpi->variable +
                           " is set), and nothing in it speaks MPI: include <distx/mpi.hpp> beside <distx/distx.hpp>",
                       {.operation = "connect"});
  if (const auto torch = detail::announced_by({"WORLD_SIZE"}); torch && torch->size > 1)
    throw ConnectError("this program was started as " + std::to_string(torch->size) +
                           " ranks by torchrun (WORLD_SIZE is set), which no connector here understands: start it with "
                           "mpirun and include <distx/mpi.hpp>",
                       {.operation = "connect"});
  return SelfConnector();
}

/// The same for a program whose arguments are nobody else's.
[[nodiscard]] inline AnyConnector connect() {
  int argc = 0;
  char* arguments[] = {nullptr};
  char** argv = arguments;
  return connect(argc, argv);
}

}  // namespace distx
