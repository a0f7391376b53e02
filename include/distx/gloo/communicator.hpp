// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/connector.hpp"
#include "distx/gloo/detail/backend.hpp"
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
/// - Connections are neither authenticated nor encrypted: between hosts, use a network that you trust.
class GlooCommunicator : public detail::BasicCommunicator<GlooCommunicator, detail::GlooBackend> {
  using Base = detail::BasicCommunicator<GlooCommunicator, detail::GlooBackend>;
  friend Base;

 public:
  /// Makes a communicator from any connector, which exchanges the addresses. Collective over the connector, which is
  /// not needed afterwards.
  /// @throws ConnectError on every rank if one cannot listen or cannot reach another
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
    const auto room = static_cast<std::size_t>(self.size), me = static_cast<std::size_t>(self.rank);
    std::unique_ptr<detail::GlooLinks> links;
    std::vector<detail::GlooAddress> mine(room), all(room * room);
    // Every rank tries every step, so that all throw the same error.
    const auto on_every_rank = [&](const std::string& what, auto&& step) {
      detail::GlooAddress problem;
      try {
        step();
      } catch (const std::exception& error) {
        problem.data[std::string_view(error.what()).copy(problem.data, sizeof problem.data - 1)] = '\0';
      }
      const auto problems = all_gather_values(connector, problem);
      for (std::size_t rank = 0; rank < room; ++rank)
        if (problems[rank].data[0] != '\0') {
          connector.barrier();  // throws if a rank has failed, which is the cause then
          throw ConnectError("rank " + std::to_string(rank) + " cannot " + what + " (" + problems[rank].data +
                                 "): set GlooOptions::address to an address of its host that the others reach",
                             context);
        }
    };
    on_every_rank("listen", [&] {
      ::gloo::transport::tcp::attr where(options.address.c_str());
      if (options.address.empty() && one_host) where.hostname = "127.0.0.1";
      links = std::make_unique<detail::GlooLinks>(detail::new_gloo_device(where), self, options.deadline,
                                                  detail::failure_channel_of(connector), identity);
      mine = links->listen(self.size);
    });
    connector.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
    on_every_rank("connect", [&] {
      links->connect([&](int other) -> const auto& { return all[static_cast<std::size_t>(other) * room + me]; });
    });
    return State::make(std::move(links));
  }
};

static_assert(Communicator<GlooCommunicator>);

}  // namespace distx
