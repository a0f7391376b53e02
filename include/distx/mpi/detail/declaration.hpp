// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/runtime/basic_communicator.hpp"

namespace distx::inline DISTX_ABI::detail {

namespace mpi {

class MpiBackend;
class Session;

}  // namespace mpi

template <>
struct BackendTraits<mpi::MpiBackend> : HostBackend {};

}  // namespace distx::inline DISTX_ABI::detail
