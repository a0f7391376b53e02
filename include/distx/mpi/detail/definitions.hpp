// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <climits>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "distx/connect/self.hpp"
#include "distx/core/version.hpp"
#include "distx/mpi/detail/backend.hpp"

namespace distx::inline DISTX_ABI {

static_assert(Communicator<MpiCommunicator>);

DISTX_INLINE MpiConnector::MpiConnector(int& argc, char**& argv, const MpiConnectorOptions& options)
    : MpiConnector(detail::mpi::new_session(argc, argv, options)) {}
DISTX_INLINE MpiConnector::MpiConnector(MPI_Comm comm, const MpiConnectorOptions& options)
    : MpiConnector(detail::mpi::new_session(comm, options.deadline)) {}

DISTX_INLINE MpiConnectorOptions::ThreadLevel MpiConnector::thread_level() const {
  return static_cast<MpiConnectorOptions::ThreadLevel>(boost::mpi::environment::thread_level());
}
DISTX_INLINE MPI_Comm MpiConnector::native_handle() const noexcept { return session()->comm(); }
DISTX_INLINE std::shared_ptr<detail::mpi::Session> MpiConnector::session() const noexcept {
  return std::static_pointer_cast<detail::mpi::Session>(self_);
}

DISTX_INLINE MpiCommunicator::MpiCommunicator(std::shared_ptr<detail::mpi::Session> session, const MpiOptions& options)
    : Base(made(std::move(session), options)) {}
DISTX_INLINE MpiCommunicator MpiCommunicator::from_native_handle(MPI_Comm comm, const MpiOptions& options) {
  return MpiCommunicator(detail::mpi::new_session(comm, options.deadline), options);
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
  struct Member {
    MpiOptions options;
    bool serves_threads;
    int next_channel;
  };
  static_assert(std::is_trivially_copyable_v<Member>);
  const Member own{options, serves_threads(), session->world().next_channel()};
  std::vector<Member> all(static_cast<std::size_t>(session->size()));
  session->make("MpiCommunicator", detail::erase(calls::AllGather<std::byte>{std::as_bytes(std::span(&own, 1)),
                                                                             std::as_writable_bytes(std::span(all))}));
  const auto differs = [&](const Member& other) {
    return other.options.max_count != options.max_count || other.options.check != options.check ||
           other.options.collectives != options.collectives;
  };
  if (std::ranges::any_of(all, differs))
    throw MismatchError("the ranks differ in MpiOptions: pass the same collectives, check and max_count on every rank",
                        context);
  if (session->is_left() && options.collectives == MpiCollectives::vendor)
    throw InvalidArgument(
        "MpiCollectives::vendor: MPI's collectives wait for all ranks of an MPI communicator, of which some have "
        "failed; omit the option after shrink",
        context);
  detail::mpi::Transport transport{.self = {session->rank(), session->size(), "mpi"},
                                   .ranks = session->subset().ranks,
                                   .identity = session->new_identity(),
                                   .serves_threads = std::ranges::all_of(all, &Member::serves_threads)};
  if (session->is_left())
    session->open(transport, std::ranges::max(all, {}, &Member::next_channel).next_channel, context);
  else
    session->open(transport, detail::mpi::duplicate(session->comm(), session->deadline(), context), options);
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
