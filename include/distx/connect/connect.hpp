// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "distx/connect/connector.hpp"
#include "distx/connect/self.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

class ConnectUrl;

}  // namespace detail

/// Connects programs that one launcher starts; a header that includes a launcher's library registers it.
struct Launcher {
  std::string_view name;    ///< such as "mpi"; `connect("mpi://")` selects it
  bool (*started_by_it)();  ///< returns whether the environment says that this launcher started the process
  AnyConnector (*connect)(int& argc, char**& argv);
  bool by_name = false;  ///< its variables name distx, so it is asked before launchers that recognize a vendor's
  bool last = false;     ///< its variables have common names, so it is asked after all others
  /// Connects the ranks as a URL says; null if its URL is the scheme alone.
  AnyConnector (*connect_to)(const detail::ConnectUrl& url) = nullptr;
  std::string (*reason)() = nullptr;  ///< returns the variable that says that it started the process, for the log
};

namespace detail {

std::vector<Launcher>& launchers();
/// Returns null if no included header registers it.
const Launcher* launcher_named(std::string_view name);

/// The arguments of main in a program without any.
struct NoArguments {
  int count = 0;
  char* end = nullptr;
  char** values = &end;
};

/// A number of ranks that a launcher has put into the environment, and the variable that holds it.
struct Announced {
  std::string variable;
  int size;
};

/// Open MPI's mpirun; MPICH's and Intel's mpiexec; srun (a batch script outside of srun has no step).
std::optional<Announced> announced_mpi_ranks();

}  // namespace detail

/// Makes a launcher known to `connect()`, before main; returns false if one of its name is known already.
bool register_launcher(const Launcher& launcher);

/// Returns a connector for however this program was started: by a launcher, or alone as one rank. Collective.
///
/// If the variable DISTX_CONNECT is set, it is the URL that `connect(url)` describes. Otherwise each entry header
/// registers its launchers: <distx/file.hpp> the variables DISTX_FILE (a shared folder), DISTX_RANK and DISTX_SIZE,
/// which take precedence over any other launcher's; <distx/mpi.hpp> mpirun, mpiexec and srun; <distx/pmix.hpp> the same
/// without MPI; <distx/tcp.hpp> torchrun, srun, and the variables RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. With
/// DISTX_LOG=info the root rank writes to stderr which launcher was used, and why. Blocks until all ranks have joined.
///
/// With DISTX_JOIN=1, and DISTX_FILE or DISTX_CONNECT=tcp://host:port, this process joins a running job: it blocks
/// until the ranks of that job call `grow`, which gives it its rank.
///
/// @param argc, argv  those of main; the launcher's own arguments may be removed
/// @throws ConnectError if a launcher started several ranks and no included header can connect them (it names the
///         header to include, and the program never runs as N unconnected ranks), if a variable is missing, malformed
///         or contradicts another (it names the variable), or if the variables of another launcher, included or not,
///         announce several ranks that are not those of the one that is used; and the errors of the connector
[[nodiscard]] AnyConnector connect(int& argc, char**& argv);

/// Does the same for a program whose arguments no launcher reads.
[[nodiscard]] AnyConnector connect();

/// Returns a connector for the ranks that a URL describes, regardless of the variables. Collective.
///
/// - `tcp://host:port?rank=0&size=4`: rank 0 listens at the address. Further parameters: `bind` (the address that
///   rank 0 binds, if it is another) and `timeout` (the deadline, in seconds).
/// - `file:///folder?rank=0&size=4`: a folder that all ranks share. Further parameter: `timeout`.
/// - `env://`: the variables of torchrun and PyTorch; `slurm://`: those of srun; `mpi://`: MPI; `pmix://`: PMIx.
/// - `self://`: one rank.
///
/// A rank and a size that the URL does not state are read from DISTX_RANK and DISTX_SIZE.
/// @throws ConnectError if the URL is malformed, contradicts a variable, or its header is not included; it names the
///         part; and the errors of the connector
[[nodiscard]] AnyConnector connect(std::string_view url);

}  // namespace distx::inline DISTX_ABI
