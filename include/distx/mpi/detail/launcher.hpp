// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/connect.hpp"
#include "distx/mpi/connector.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// A template because the compiled form has it.
template <class C>
AnyConnector connect_by_mpi(int& argc, char**& argv) {
  return C(argc, argv);
}

/// Detects mpirun for `connect()` once this header is included.
inline const Launcher launcher{
    .name = "mpi",
    .started_by_it = [] { return detail::announced_mpi_ranks().has_value(); },
    .connect = connect_by_mpi<MpiConnector>,
};

inline const bool launcher_is_registered = register_launcher(launcher);

}  // namespace distx::inline DISTX_ABI::detail::mpi
