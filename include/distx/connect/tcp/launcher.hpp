// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/detail/announced_ranks.hpp"
#include "distx/connect/tcp/tcp_connector.hpp"

namespace distx::inline DISTX_ABI::detail::tcp {

inline const Launcher launcher{
    .name = "tcp",
    .started_by_it = [] { return false; },  // only its URL selects it
    .connect = [](int&, char**&) -> AnyConnector { return SelfConnector(); },
    .last = true,
    .connect_to = connect_by_url,
};
/// torchrun may itself have been started by srun, whose variables are then set as well; a folder takes precedence.
inline const Launcher torchrun_launcher{
    .name = "torchrun",
    .started_by_it = [] { return !is_set("DISTX_FILE") && is_set("TORCHELASTIC_RUN_ID") && is_set("WORLD_SIZE"); },
    .connect = [](int&, char**&) { return connect_by_variables(); },
    .by_name = true,
    .reason = [] { return std::string("TORCHELASTIC_RUN_ID is set"); },
};
inline const Launcher slurm_launcher{
    .name = "slurm",
    .started_by_it =
        [] {
          // Inside a job of Slurm, mpirun starts its processes by srun.
          const bool by_mpirun = announced_to("mpi").has_value();
          return !by_mpirun && is_slurm_task() && is_set("SLURM_PROCID") && is_set("SLURM_STEP_NODELIST");
        },
    .connect = [](int&, char**&) { return connect_in_slurm(); },
    .last = true,
    .reason = [] { return std::string("SLURM_PROCID and SLURM_STEP_NODELIST are set"); },
};
inline const Launcher env_launcher{
    .name = "env",
    .started_by_it = [] { return is_set("WORLD_SIZE"); },
    .connect = [](int&, char**&) { return connect_by_variables(); },
    .last = true,
    .reason = [] { return std::string("WORLD_SIZE is set"); },
};

/// Lets `connect()` join ranks over TCP once this header is included. The order is that in which they are asked.
inline const bool launchers_are_registered = register_launcher(torchrun_launcher) && register_launcher(env_launcher) &&
                                             register_launcher(slurm_launcher) && register_launcher(launcher);

}  // namespace distx::inline DISTX_ABI::detail::tcp
