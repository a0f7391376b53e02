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

namespace detail::mpi {

inline Transport transport_of_all(Session& session, const MpiOptions& options) {
  session.barrier("MpiCommunicator");
  auto comm = duplicate(session.comm(), session.deadline(), session.where("MpiCommunicator"));
  return open_transport(session, std::move(comm), options);
}
inline Transport transport_of_subset(Session& session, const MpiOptions& options) {
  const auto context = session.where("MpiCommunicator");
  if (options.collectives == MpiCollectives::vendor)
    throw InvalidArgument(
        "MpiCollectives::vendor: MPI's collectives wait for all ranks of an MPI communicator, of which some have "
        "failed; omit the option after shrink",
        context);
  const auto all_gathered = [&](int value) {
    std::vector<int> all(static_cast<std::size_t>(session.size()));
    session.make("MpiCommunicator", erase(calls::AllGather<int>{{&value, 1}, all}));
    return all;
  };
  return open_transport(session, session.world().new_subset(all_gathered, *session.subset()->ranks, context));
}

}  // namespace detail::mpi

DISTX_INLINE auto MpiCommunicator::made(std::shared_ptr<detail::mpi::Session> session,
                                        const MpiOptions& options) -> std::shared_ptr<State> {
  const auto context = session->where("MpiCommunicator");
  if (options.max_count < 1 || options.max_count > INT_MAX)
    throw InvalidArgument(
        "invalid max_count " + std::to_string(options.max_count) + ": must be in [1, " + std::to_string(INT_MAX) + "]",
        context);
  auto transport = session->subset() ? detail::mpi::transport_of_subset(*session, options)
                                     : detail::mpi::transport_of_all(*session, options);
  return State::make(std::move(session), std::move(transport), options);
}

DISTX_INLINE std::shared_ptr<detail::mpi::Session> MpiCommunicator::session_of(AnyConnector& connector) {
  if (auto* const known = connector.target<MpiConnector>(); known != nullptr) return known->session();
  return session_of_one(connector.rank(), connector.size());
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
