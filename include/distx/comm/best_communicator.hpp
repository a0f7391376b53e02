// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/any_communicator.hpp"
#include "distx/comm/detail/communicator_makers.hpp"
#include "distx/comm/hierarchical/connector.hpp"
#include "distx/threads.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// Makes a Hierarchical. Collective over `outer`.
[[nodiscard]] AnyCommunicator<> two_levels(AnyCommunicator<> inner, AnyCommunicator<> outer);

/// Makes a communicator of several processes, which needs a vendor's header. @pre there is more than one rank
template <class SharedMemory, class Mpi, class Gloo, Connector C>
[[nodiscard]] AnyCommunicator<> made_by_vendors(C& connector, const Hosts& hosts, Timeout deadline,
                                                const ErrorContext& context) {
  // Checked before anything is made, so that every rank throws the same error.
  if (hosts.largest() > 1 && !is_included<SharedMemory>) demand_maker("<distx/shm.hpp>", context);
  bool by_mpi = false;
  if constexpr (is_included<Mpi>) by_mpi = Mpi::serves(connector);
  if (hosts.count() > 1 && !by_mpi && !is_included<Gloo>)
    demand_maker("<distx/gloo.hpp>, or <distx/mpi.hpp> if mpirun starts them", context);
  const auto make = [deadline]<class Maker>(std::type_identity<Maker>, auto& ranks) -> AnyCommunicator<> {
    if constexpr (is_included<Maker>)
      return Maker::make(ranks, deadline);
    else
      throw ConnectError("no communicator is available: include <distx/shm.hpp>, <distx/gloo.hpp> or <distx/mpi.hpp>");
  };
  const auto make_inner = [&](auto& ranks) { return make(std::type_identity<SharedMemory>{}, ranks); };
  const auto make_outer = [&](auto& ranks) {
    return by_mpi ? make(std::type_identity<Mpi>{}, ranks) : make(std::type_identity<Gloo>{}, ranks);
  };
  if (hosts.count() == 1) return make_inner(connector);
  if (hosts.largest() == 1) return make_outer(connector);
  if constexpr (is_included<Mpi>) {
    if (by_mpi && !Mpi::serves_threads())
      throw ConnectError(
          "MPI was not started for calls of several threads, which shared memory inside with MPI across "
          "makes: start it with MPI_THREAD_MULTIPLE, or let MpiConnector start it",
          context);
  }
  auto [inner, outer] = make_levels(connector, make_inner, make_outer);
  return two_levels(std::move(inner), std::move(outer));
}

}  // namespace detail

/// Returns the fastest communicator for the location of the ranks. Collective over the connector.
///
/// - one rank: SerialCommunicator
/// - threads of one process: ThreadCommunicator
/// - processes on one host: shared memory
/// - one rank on each of several hosts: MPI if it started the ranks, otherwise Gloo
/// - otherwise: shared memory inside each host, and MPI or Gloo across hosts
///
/// @throws ConnectError if the choice needs a header that the program does not include; the message names it
template <Connector C, class SharedMemory = detail::maker_t<detail::SharedMemoryTag, C>,
          class Mpi = detail::maker_t<detail::MpiTag, C>, class Gloo = detail::maker_t<detail::GlooTag, C>>
[[nodiscard]] AnyCommunicator<> best_communicator(C& connector, Timeout deadline = default_deadline) {
  if (connector.size() == 1) return AnyCommunicator<>(SerialCommunicator(connector, deadline));
  const detail::Hosts hosts = detail::hosts_of(connector);
  if (hosts.count() == 1 && detail::first_foreign_rank(connector) < 0)
    return AnyCommunicator<>(ThreadCommunicator(connector, deadline));
  return detail::made_by_vendors<SharedMemory, Mpi, Gloo>(
      connector, hosts, deadline,
      {.operation = "best_communicator", .rank = connector.rank(), .size = connector.size()});
}

}  // namespace distx::inline DISTX_ABI
#ifndef DISTX_COMPILED
#include "distx/comm/hierarchical/definitions.hpp"
#endif
