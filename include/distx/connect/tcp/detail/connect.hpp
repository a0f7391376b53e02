// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/connect.hpp"

namespace distx::inline DISTX_ABI::detail::tcp {

/// Joins the ranks of a URL: tcp://host:port?rank=0&size=4.
///
/// In a Job of Kubernetes with completion mode Indexed, the completion index stands for the rank.
[[nodiscard]] AnyConnector connect_by_url(const ConnectUrl& url);
/// Joins the ranks that torchrun, or anything that sets its variables, has started.
[[nodiscard]] AnyConnector connect_by_variables();
/// Joins the ranks of a job step that srun has started.
[[nodiscard]] AnyConnector connect_in_slurm();

}  // namespace distx::inline DISTX_ABI::detail::tcp
