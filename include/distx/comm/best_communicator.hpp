// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/any_communicator.hpp"
#include "distx/comm/communicator_makers.hpp"
#include "distx/comm/hierarchical.hpp"
#include "distx/comm/serial.hpp"
#include "distx/comm/threads.hpp"

namespace distx {

/// The communicator that fits where the ranks are: alone, SerialCommunicator; threads of one process,
/// ThreadCommunicator; on one machine, shared memory; one on each of several machines, MPI; else shared memory inside
/// and MPI across. Collective.
/// @throws ConnectError where that takes a vendor's header which this program does not include: it says which
template <Connector C>
[[nodiscard]] AnyCommunicator<> best_communicator(C& connector, Timeout deadline = default_deadline) {
  const ErrorContext context{.operation = "best_communicator", .rank = connector.rank(), .size = connector.size()};
  if (connector.size() == 1) return AnyCommunicator<>(SerialCommunicator(connector, deadline));
  const detail::Machines machines = detail::machines_of(connector);
  if (machines.count() == 1) {
    if (detail::ThreadKind::stranger(connector) < 0)
      return AnyCommunicator<>(ThreadCommunicator(connector, deadline));
    return detail::make_communicator("shm", connector, deadline, context);
  }
  if (machines.largest() == 1) return detail::make_communicator("mpi", connector, deadline, context);
  // Before anything is made, so that every rank says the same.
  (void)detail::maker_of("shm", context);
  if (const auto& mpi = detail::maker_of("mpi", context); !mpi.serves_threads())
    throw ConnectError("MPI was not started for calls of several threads, which shared memory inside with MPI across "
                       "makes: start it with MPI_THREAD_MULTIPLE, or let MpiConnector start it",
                       context);
  auto [inner, outer] = detail::make_levels(
      connector, [&](auto& machine) { return detail::make_communicator("shm", machine, deadline, context); },
      [&](auto& all) { return detail::make_communicator("mpi", all, deadline, context); });
  return AnyCommunicator<>(Hierarchical(std::move(inner), std::move(outer)));
}

}  // namespace distx
