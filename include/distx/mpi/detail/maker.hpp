// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/any_communicator.hpp"
#include "distx/comm/detail/communicator_makers.hpp"
#include "distx/mpi/communicator.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Makes MPI communicators for `best_communicator()` once this header is included.
struct MpiMaker {
  template <Connector C>
  static AnyCommunicator<> make(C& connector, Timeout deadline) {
    return AnyCommunicator<>(MpiCommunicator(connector, {.deadline = deadline}));
  }
  template <Connector C>
  static bool serves([[maybe_unused]] C& connector) {
    if constexpr (std::same_as<C, AnyConnector>)
      return connector.template target<MpiConnector>() != nullptr;
    else
      return std::same_as<C, MpiConnector>;
  }
  static bool serves_threads() { return MpiCommunicator::serves_threads(); }
};

MpiMaker maker_for(MpiTag);

}  // namespace distx::inline DISTX_ABI::detail
