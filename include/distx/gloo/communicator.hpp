// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/connector.hpp"
#include "distx/gloo/detail/links.hpp"
#include "distx/posix/host.hpp"

namespace distx {

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

  template <class C>
  static std::shared_ptr<State> connected(C& connector, const GlooOptions& options) {
    const calls::RankOf self{connector.rank(), connector.size(), "gloo"};
    const ErrorContext context{
        .operation = "GlooCommunicator", .backend = self.backend, .rank = self.rank, .size = self.size};
    const auto hosts = all_gather_values(connector, detail::posix::host_id());
    const bool one_host = std::all_of(hosts.begin(), hosts.end(), [&](const auto& host) { return host == hosts[0]; });
    const auto identity = broadcast_value(connector, detail::new_gloo_identity(), 0);
    const auto make = [&] {
      ::gloo::transport::tcp::attr where(options.address.c_str());
      if (options.address.empty() && one_host) where.hostname = "127.0.0.1";
      return std::make_unique<detail::GlooLinks>(detail::gloo_device(where), self, options.deadline,
                                                 detail::failure_channel_of(connector), identity);
    };
    const auto gather = [&](auto mine, auto all) {
      connector.all_gather(std::as_bytes(mine), std::as_writable_bytes(all));
    };
    return State::make(detail::connected_links(context, options.deadline, make, std::identity(), gather));
  }
};

static_assert(Communicator<GlooCommunicator>);

}  // namespace distx
