// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/connect.hpp"
#include "distx/mpi/connector.hpp"

namespace distx::detail::mpi {

/// Detects mpirun for `connect()` once this header is included.
inline const Launcher launcher{
    .name = "mpi",
    .started_by_it = [] { return detail::announced_mpi_ranks().has_value(); },
    .connect = [](int& argc, char**& argv) -> AnyConnector { return MpiConnector(argc, argv); },
};

inline const bool launcher_is_registered = register_launcher(launcher);

}  // namespace distx::detail::mpi
