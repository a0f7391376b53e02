// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <climits>
#include <string>
#include <vector>

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
    : session_(std::move(session)) {}

DISTX_INLINE int MpiConnector::rank() const noexcept { return session_->rank(); }
DISTX_INLINE int MpiConnector::size() const noexcept { return session_->size(); }
DISTX_INLINE int MpiConnector::local_rank() const noexcept { return session_->local_rank(); }
DISTX_INLINE int MpiConnector::local_size() const noexcept { return session_->local_size(); }
DISTX_INLINE MpiConnectorOptions::ThreadLevel MpiConnector::thread_level() const {
  return static_cast<MpiConnectorOptions::ThreadLevel>(boost::mpi::environment::thread_level());
}
DISTX_INLINE MPI_Comm MpiConnector::native_handle() const noexcept { return session_->comm(); }
DISTX_INLINE std::shared_ptr<FailureChannel> MpiConnector::failure_channel() const {
  if (thread_level() != MpiConnectorOptions::ThreadLevel::multiple) return nullptr;
  return session_;
}

DISTX_INLINE void MpiConnector::barrier() { session_->barrier("barrier"); }
DISTX_INLINE void MpiConnector::broadcast(std::span<std::byte> bytes, int root) {
  detail::check_control_root(root, rank(), size());
  if (session_->subset()) return session_->make("broadcast", erase(calls::Broadcast<std::byte>{bytes, root}));
  same_size("broadcast", bytes.size());
  if (bytes.empty()) return;
  auto staged = std::make_unique<std::vector<std::byte>>(bytes.begin(), bytes.end());
  session_->run("broadcast", "MPI_Ibcast", staged, [&](auto& buffer, MPI_Request* request) {
    return MPI_Ibcast(buffer.data(), static_cast<int>(buffer.size()), MPI_BYTE, root, native_handle(), request);
  });
  std::copy(staged->begin(), staged->end(), bytes.begin());
}
DISTX_INLINE void MpiConnector::all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
  detail::check_control_gather(send.size(), receive.size(), rank(), size());
  if (session_->subset()) return session_->make("all_gather", erase(calls::AllGather<std::byte>{send, receive}));
  same_size("all_gather", send.size());
  if (send.empty()) return;
  gather("all_gather", send, receive);
}
DISTX_INLINE MpiConnector MpiConnector::shrink(Timeout deadline) {
  return MpiConnector(detail::mpi::Session::shrink(*session_, deadline));
}
DISTX_INLINE MpiConnector MpiConnector::grow() const { return MpiConnector(session_); }

// Uses a staging buffer, so MPI does not write to the caller's buffer after a timeout.
DISTX_INLINE void MpiConnector::gather(const char* operation, std::span<const std::byte> send,
                                       std::span<std::byte> receive) {
  auto staged = std::make_unique<std::vector<std::byte>>(receive.size());
  const auto own = static_cast<std::size_t>(rank()) * send.size();
  std::copy(send.begin(), send.end(), staged->begin() + static_cast<std::ptrdiff_t>(own));
  session_->run(operation, "MPI_Iallgather", staged, [&](auto& buffer, MPI_Request* request) {
    return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buffer.data(), static_cast<int>(send.size()), MPI_BYTE,
                          native_handle(), request);
  });
  std::copy(staged->begin(), staged->end(), receive.begin());
}
DISTX_INLINE void MpiConnector::same_size(const char* operation, std::size_t mine) {
  std::vector<std::size_t> all(static_cast<std::size_t>(size()));
  gather(operation, std::as_bytes(std::span<const std::size_t>(&mine, 1)), std::as_writable_bytes(std::span(all)));
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      throw MismatchError("rank 0 passes " + std::to_string(all[0]) + " bytes, rank " + std::to_string(rank) + " " +
                              std::to_string(all[rank]),
                          session_->where(operation));
  if (mine > INT_MAX)
    throw MismatchError(
        "a control message has at most " + std::to_string(INT_MAX) + " bytes, this one " + std::to_string(mine),
        session_->where(operation));
}

}  // namespace distx::inline DISTX_ABI
