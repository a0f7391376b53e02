// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>
#include <string>

#include "distx/connect/connect.hpp"

namespace distx::inline DISTX_ABI {

/// Options of a TcpConnector.
struct TcpConnectorOptions {
  /// How long the constructor, and every call, waits for the other ranks.
  Timeout deadline = default_deadline;
  /// A secret of the job, the same on every rank; if empty, DISTX_TOKEN or the file that DISTX_TOKEN_FILE names.
  std::string token{};
  /// The address that rank 0 binds, if it differs from the one that the others connect to; such as "0.0.0.0".
  std::string bind{};
};

/// A Connector of processes that reach rank 0 over TCP, on one host or several.
///
/// Rank 0 listens at the given address; the other ranks connect to it, try again until their deadline, and stay
/// connected. It is meant for control messages, and a message of all ranks has at most 256 MiB. If a process exits
/// without destroying its connector, every call of the other ranks ends at once with a RankFailure; if it destroys the
/// connector while unwinding, with a RevokedError.
///
/// Before anything else is read, both sides prove by an HMAC-SHA256 challenge that they know the token. Without a token
/// only loopback addresses are accepted. Messages are not encrypted: between hosts, use a network that you trust.
///
/// Destroying it on rank 0 blocks until the other ranks have destroyed theirs, up to the deadline, because rank 0
/// passes on their failures; after an error of it or of a communicator, for two seconds at most. In a process that
/// is forked from a rank's, calls throw InvalidState, and the destructor does nothing.
class TcpConnector : public detail::ErasedConnector {
 public:
  /// Joins the other ranks. Collective; blocks until all ranks have joined.
  ///
  /// @param host  the name or the address at which rank 0 listens, the same on every rank
  /// @param port  in [1, 65535], the same on every rank
  /// @param rank  in [0, size)
  /// @param size  the number of ranks, the same on every rank; at most 65536
  /// @throws ConnectError if an argument is invalid, the ranks' sizes or tokens differ, two processes have one rank,
  ///         the port is in use, or the address is not a loopback address and no token is set
  /// @throws TimeoutError naming the missing ranks; RankFailure if a rank's process exits
  TcpConnector(const std::string& host, int port, int rank, int size, const TcpConnectorOptions& options = {});
  /// For launchers, which make the group.
  explicit TcpConnector(std::shared_ptr<detail::VirtualConnector> group) noexcept : ErasedConnector(std::move(group)) {}
  /// Joins the job whose rank 0 listens at the address, once its ranks call `grow`. Blocks until then.
  ///
  /// The new ranks follow those of the job, in the order in which they have connected.
  /// @throws ConnectError if the token is another one, the job ends, or it does not admit this process before the
  ///         deadline
  [[nodiscard]] static TcpConnector join(const std::string& host, int port, const TcpConnectorOptions& options);
  TcpConnector(TcpConnector&&) noexcept = default;
  TcpConnector& operator=(TcpConnector&&) noexcept = default;

  /// Returns a connector of the surviving ranks, as `AnyConnector::shrink` describes. It uses the connections of
  /// this one, so rank 0 must be among them.
  /// @throws ConnectError if rank 0, which serves the others, is lost or does not enter the call before the deadline
  [[nodiscard]] TcpConnector shrink(Timeout deadline = default_deadline) {
    return TcpConnector(self_->shrink(deadline));
  }

  /// Returns a connector of these ranks and of the processes that wait to join, as `AnyConnector::grow` describes.
  [[nodiscard]] TcpConnector grow() { return TcpConnector(self_->grow()); }
};

static_assert(Connector<TcpConnector> && HasFailureChannel<TcpConnector>);

namespace detail::tcp {

/// Joins the ranks of a URL: tcp://host:port?rank=0&size=4.
///
/// In a Job of Kubernetes with completion mode Indexed, the completion index stands for the rank.
[[nodiscard]] AnyConnector connect_by_url(const ConnectUrl& url);
/// Joins the ranks that torchrun, or anything that sets its variables, has started.
[[nodiscard]] AnyConnector connect_by_variables();
/// Joins the ranks of a job step that srun has started.
[[nodiscard]] AnyConnector connect_in_slurm();

}  // namespace detail::tcp

}  // namespace distx::inline DISTX_ABI
