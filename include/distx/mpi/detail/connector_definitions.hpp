// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
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
    : RankNumbers(*session), session_(std::move(session)) {}

DISTX_INLINE MpiConnectorOptions::ThreadLevel MpiConnector::thread_level() const {
  return static_cast<MpiConnectorOptions::ThreadLevel>(boost::mpi::environment::thread_level());
}
DISTX_INLINE MPI_Comm MpiConnector::native_handle() const noexcept { return session_->comm(); }
DISTX_INLINE std::shared_ptr<FailureChannel> MpiConnector::failure_channel() const {
  return detail::mpi::serves_threads() ? session_ : nullptr;
}

DISTX_INLINE void MpiConnector::barrier() { session_->make("barrier", calls::Barrier<Host>{}); }
DISTX_INLINE void MpiConnector::broadcast(std::span<std::byte> bytes, int root) {
  detail::check_control_root(root, rank(), size());
  session_->make_in_parts("broadcast", bytes.size(), [&](std::size_t offset, std::size_t count, auto&& make) {
    make(erase(calls::Broadcast<std::byte>{bytes.subspan(offset, count), root}));
  });
}
DISTX_INLINE void MpiConnector::all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
  detail::check_control_gather(send.size(), receive.size(), rank(), size());
  std::vector<std::byte> blocks;
  session_->make_in_parts("all_gather", send.size(), [&](std::size_t offset, std::size_t count, auto&& make) {
    blocks.resize(count * static_cast<std::size_t>(size()));
    make(erase(calls::AllGather<std::byte>{send.subspan(offset, count), blocks}));
    for (std::size_t from = 0, to = offset; from < blocks.size(); from += count, to += send.size())
      std::copy_n(&blocks[from], count, &receive[to]);
  });
}
DISTX_INLINE MpiConnector MpiConnector::shrink(Timeout deadline) {
  return MpiConnector(detail::mpi::Session::shrink(*session_, deadline));
}
DISTX_INLINE MpiConnector MpiConnector::grow() const { return MpiConnector(session_); }

}  // namespace distx::inline DISTX_ABI
