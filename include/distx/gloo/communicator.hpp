// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/runtime/basic_communicator.hpp"
#include "distx/connect/connector.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

template <class Links>
class MessageBackend;
class GlooLinks;
using GlooBackend = MessageBackend<GlooLinks>;

template <>
struct BackendTraits<GlooBackend> : HostBackend {};

}  // namespace detail

/// Options of a GlooCommunicator.
struct GlooOptions {
  /// The time that a call waits for the other ranks before it throws TimeoutError; the same on every rank.
  Timeout deadline = default_deadline;
  /// The name or the address at which the other hosts reach this one. If empty: the loopback address if all ranks run
  /// on one host, otherwise what the host's name resolves to.
  std::string address{};
};

/// A communicator of processes, on one host or several, that Gloo connects over TCP.
///
/// - Reductions combine operands in rank order, so the result does not depend on the number of hosts.
/// - A call that differs between ranks throws MismatchError on every rank.
/// - Asynchronous collectives run on a thread of the communicator, asynchronous messages on a thread each.
/// - If a rank ends, the calls of the others that wait for it throw RankFailure, or RevokedError with the reason if the
///   connector has a failure channel.
/// - A stranger that connects to a port of a rank does not join; docs/starting.md says what one can do. Connections are
///   not encrypted: between hosts, use a network that you trust.
class GlooCommunicator : public detail::BasicCommunicator<GlooCommunicator, detail::GlooBackend> {
  using Base = detail::BasicCommunicator<GlooCommunicator, detail::GlooBackend>;
  friend Base;

 public:
  /// Makes a communicator from any connector, which exchanges the addresses. Collective over the connector, which is
  /// not needed afterwards.
  /// @throws ConnectError on every rank if one cannot listen or cannot reach another, or if a stranger has connected in
  ///   the place of a rank in each of five attempts
  template <class C>
    requires(!std::same_as<std::remove_const_t<C>, GlooCommunicator>) && Connector<C>
  explicit GlooCommunicator(C& connector, const GlooOptions& options = {}) : Base(connected(connector, options)) {}

 private:
  using Base::Base;

  static std::shared_ptr<State> connected(detail::ConnectorRef connector, const GlooOptions& options);
};

}  // namespace distx::inline DISTX_ABI
