// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/self.hpp"
#include "distx/connect/tcp/detail/start_group.hpp"

namespace distx {

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
class TcpConnector {
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
  TcpConnector(const std::string& host, int port, int rank, int size, const TcpConnectorOptions& options = {})
      : TcpConnector(
            detail::tcp::start_group({host, port}, options.bind, {rank, size, options.deadline, options.token})) {}
  /// For launchers, which make the group.
  explicit TcpConnector(std::shared_ptr<detail::tcp::TcpGroup> group)
      : group_(std::move(group)),
        local_rank_(group_->count_on_host(group_->rank())),
        local_size_(group_->count_on_host(group_->size())) {}
  /// Joins the job whose rank 0 listens at the address, once its ranks call `grow`. Blocks until then.
  ///
  /// The new ranks follow those of the job, in the order in which they have connected.
  /// @throws ConnectError if the token is another one, the job ends, or it does not admit this process before the
  ///         deadline
  [[nodiscard]] static TcpConnector join(const std::string& host, int port, const TcpConnectorOptions& options) {
    return TcpConnector(
        detail::tcp::join_running({host, port}, {.deadline = options.deadline, .token = options.token}));
  }
  TcpConnector(TcpConnector&&) noexcept = default;
  TcpConnector& operator=(TcpConnector&&) noexcept = default;

  [[nodiscard]] int rank() const noexcept { return group_->rank(); }
  [[nodiscard]] int size() const noexcept { return group_->size(); }
  /// Returns the rank among those of this host: under one kernel, seeing each other's process ids.
  [[nodiscard]] int local_rank() const noexcept { return local_rank_; }
  [[nodiscard]] int local_size() const noexcept { return local_size_; }
  [[nodiscard]] int root_rank() const noexcept { return 0; }

  /// Blocks until every rank has entered the call. Collective.
  /// @throws MismatchError on every rank if the ranks make different calls; TimeoutError naming the missing ranks;
  ///         RankFailure or RevokedError if another rank has ended. The same holds for the other calls
  void barrier() { (void)group_->exchange({.call = "barrier"}, group_->where("barrier")); }

  /// Copies `bytes` of `root` to `bytes` on every rank. Collective.
  /// @throws InvalidArgument unless root is a rank; MismatchError on every rank if the ranks pass different roots or
  ///         numbers of bytes
  void broadcast(std::span<std::byte> bytes, int root) {
    detail::check_control_root(root, rank(), size());
    group_->check_length(bytes.size(), group_->where("broadcast"));
    const auto received = group_->exchange(
        {.call = "broadcast of " + std::to_string(bytes.size()) + " bytes from rank " + std::to_string(root),
         .result = detail::tcp::CallResult::of_root,
         .root = root,
         .bytes = rank() == root ? text_of(bytes) : std::string()},
        group_->where("broadcast"));
    write(received, bytes);
  }

  /// Writes the ranks' `send` to `receive`, in rank order. Collective.
  /// @throws InvalidArgument unless `receive` has `size()` times the bytes of `send`; MismatchError on every rank if
  ///         the ranks pass different numbers of bytes
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
    detail::check_control_gather(send.size(), receive.size(), rank(), size());
    group_->check_length(receive.size(), group_->where("all_gather"));
    const auto received = group_->exchange({.call = "all_gather of " + std::to_string(send.size()) + " bytes",
                                            .result = detail::tcp::CallResult::of_all,
                                            .bytes = text_of(send)},
                                           group_->where("all_gather"));
    write(received, receive);
  }

  /// Returns a connector of the ranks that are left, as `AnyConnector::shrink` describes. It uses the connections of
  /// this one, so rank 0 must be among them.
  /// @throws ConnectError if rank 0, which serves the others, is lost or does not enter the call before the deadline
  [[nodiscard]] TcpConnector shrink(Timeout deadline = default_deadline) {
    return TcpConnector(group_->shrink(deadline));
  }

  /// Returns a connector of these ranks and of the processes that wait to join, as `AnyConnector::grow` describes.
  [[nodiscard]] TcpConnector grow() {
    auto larger = group_->grow();
    return TcpConnector(larger ? std::move(larger) : group_);
  }

  /// Returns the ranks' failure channel, which also reports a rank that exited. Never null; while it is kept, this rank
  /// does not leave.
  [[nodiscard]] std::shared_ptr<FailureChannel> failure_channel() const noexcept { return group_; }

 private:
  static std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  static void write(const std::string& received, std::span<std::byte> bytes) {
    if (!bytes.empty() && !received.empty())
      std::memcpy(bytes.data(), received.data(), std::min(received.size(), bytes.size()));
  }

  std::shared_ptr<detail::tcp::TcpGroup> group_;
  int local_rank_;
  int local_size_;
};

static_assert(Connector<TcpConnector> && HasFailureChannel<TcpConnector>);

}  // namespace distx
