// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/self.hpp"
#include "distx/core/version.hpp"
#include "distx/mpi/connector.hpp"
#include "distx/mpi/detail/session.hpp"

namespace distx::inline DISTX_ABI {

DISTX_INLINE MpiConnector::MpiConnector(int& argc, char**& argv, const MpiConnectorOptions& options)
    : MpiConnector(detail::make_here<detail::mpi::Session>(detail::make_here<detail::mpi::World>(
          argc, argv, static_cast<detail::mpi::BoostThreadLevel>(options.thread_level), options.deadline))) {}
DISTX_INLINE MpiConnector::MpiConnector(MPI_Comm comm, const MpiConnectorOptions& options)
    : MpiConnector(
          detail::make_here<detail::mpi::Session>(detail::make_here<detail::mpi::World>(comm, options.deadline))) {}
DISTX_INLINE MpiConnector::MpiConnector(std::shared_ptr<detail::mpi::Session> session) noexcept
    : RankNumbers(*session), session_(std::move(session)) {}

DISTX_INLINE MpiConnectorOptions::ThreadLevel MpiConnector::thread_level() const {
  return static_cast<MpiConnectorOptions::ThreadLevel>(boost::mpi::environment::thread_level());
}
DISTX_INLINE MPI_Comm MpiConnector::native_handle() const noexcept { return session_->comm(); }
DISTX_INLINE std::shared_ptr<FailureChannel> MpiConnector::failure_channel() const {
  return detail::mpi::serves_threads() ? session_ : nullptr;
}

DISTX_INLINE void MpiConnector::barrier() { session_->barrier("barrier"); }
DISTX_INLINE void MpiConnector::broadcast(std::span<std::byte> bytes, int root) {
  detail::check_control_root(root, rank(), size());
  session_->broadcast(bytes, root);
}
DISTX_INLINE void MpiConnector::all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
  detail::check_control_gather(send.size(), receive.size(), rank(), size());
  session_->all_gather(send, receive);
}
DISTX_INLINE MpiConnector MpiConnector::shrink(Timeout deadline) {
  return MpiConnector(detail::mpi::Session::shrink(*session_, deadline));
}
DISTX_INLINE MpiConnector MpiConnector::grow() const { return MpiConnector(session_); }

}  // namespace distx::inline DISTX_ABI
