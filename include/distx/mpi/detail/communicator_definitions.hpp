// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <climits>
#include <string>

#include "distx/core/version.hpp"
#include "distx/mpi/communicator.hpp"
#include "distx/mpi/detail/backend_definitions.hpp"
#include "distx/mpi/detail/connector_definitions.hpp"

namespace distx::inline DISTX_ABI {

static_assert(Communicator<MpiCommunicator>);

DISTX_INLINE MpiCommunicator::MpiCommunicator(std::shared_ptr<detail::mpi::Session> session, const MpiOptions& options)
    : Base(made(std::move(session), options)) {}
DISTX_INLINE MpiCommunicator MpiCommunicator::from_native_handle(MPI_Comm comm, const MpiOptions& options) {
  return MpiCommunicator(
      detail::make_here<detail::mpi::Session>(detail::make_here<detail::mpi::World>(comm, options.deadline)), options);
}
DISTX_INLINE MPI_Comm MpiCommunicator::native_handle() const noexcept { return backend_of().native_handle(); }
DISTX_INLINE bool MpiCommunicator::serves_threads() { return detail::mpi::serves_threads(); }

DISTX_INLINE auto MpiCommunicator::made(std::shared_ptr<detail::mpi::Session> session,
                                        const MpiOptions& options) -> std::shared_ptr<State> {
  const auto context = session->where("MpiCommunicator");
  if (options.max_count < 1 || options.max_count > INT_MAX)
    throw InvalidArgument(
        "invalid max_count " + std::to_string(options.max_count) + ": must be in [1, " + std::to_string(INT_MAX) + "]",
        context);
  detail::mpi::Transport transport;
  if (!session->is_left()) {
    session->barrier("MpiCommunicator");
    auto comm = detail::mpi::duplicate(session->comm(), session->deadline(), context);
    transport = open_transport(*session, std::move(comm), options);
  } else if (options.collectives == MpiCollectives::vendor) {
    throw InvalidArgument(
        "MpiCollectives::vendor: MPI's collectives wait for all ranks of an MPI communicator, of which some have "
        "failed; omit the option after shrink",
        context);
  } else {
    int channel = session->world().next_channel();
    session->make("MpiCommunicator", erase(calls::AllReduce<int, Max>{{&channel, 1}, {&channel, 1}, max}));
    transport = open_transport(*session, session->world().subset_of(*session->subset().ranks, channel, context));
  }
  return State::make(std::move(session), std::move(transport), options);
}

DISTX_INLINE std::shared_ptr<detail::mpi::Session> MpiCommunicator::session_of_one(int rank, int size) {
  if (size != 1)
    throw ConnectError("these " + std::to_string(size) +
                           " ranks were not started by MPI; start the program with mpirun and use connect() or an "
                           "MpiConnector, or use ThreadCommunicator for ranks that are threads",
                       {.operation = "MpiCommunicator", .backend = "mpi", .rank = rank, .size = size});
  return detail::mpi::alone();
}

}  // namespace distx::inline DISTX_ABI
