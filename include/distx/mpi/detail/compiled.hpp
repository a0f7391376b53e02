// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The templates of mpi/ in the compiled form. DISTX_COMPILED is `extern` where they are declared,
// and nothing where they are defined.
#include "distx/comm/detail/compiled_communicator.hpp"
#include "distx/mpi/communicator.hpp"
#include "distx/mpi/detail/launcher.hpp"

namespace distx::inline DISTX_ABI {

DISTX_COMPILED template MpiCommunicator::MpiCommunicator(AnyConnector&, const MpiOptions&);
DISTX_COMPILED template MpiCommunicator::MpiCommunicator(MpiConnector&, const MpiOptions&);

}  // namespace distx::inline DISTX_ABI

namespace distx::inline DISTX_ABI::detail {

DISTX_COMPILED template AnyConnector mpi::connect_by_mpi<MpiConnector>(int&, char**&);

DISTX_COMPILED_COMMUNICATOR(MpiCommunicator, mpi::MpiBackend);

}  // namespace distx::inline DISTX_ABI::detail
