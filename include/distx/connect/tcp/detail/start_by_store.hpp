// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/detail/variables.hpp"
#include "distx/connect/tcp/detail/start_group.hpp"
#include "distx/connect/tcp/detail/store_client.hpp"

namespace distx::detail::tcp {

/// Where ranks find the store that an agent serves, and their keys in it.
struct StoreTerms {
  Endpoint endpoint;
  std::string prefix;       ///< of this job's keys, different after each restart
  bool on_one_host = true;  ///< all ranks are on the host of rank 0
};

/// Returns an address of rank 0 as the store keeps it: host, port and token.
[[nodiscard]] inline std::string published_address(const RootAddress& root) {
  return root.endpoint.host + " " + std::to_string(root.endpoint.port) + " " + root.token;
}
[[nodiscard]] inline std::optional<RootAddress> address_from(const std::string& text) {
  const auto first = text.find(' '), last = text.rfind(' ');
  if (first == std::string::npos || first == last) return std::nullopt;
  const auto port = parse_int(std::string_view(text).substr(first + 1, last - first - 1));
  if (!port || *port < 1 || *port > 65535) return std::nullopt;
  return RootAddress{{text.substr(0, first), *port}, text.substr(last + 1), false};
}

/// Opens the store: tries again, with growing pauses, until the deadline.
/// @throws TimeoutError
inline void open_store(StoreClient& store, const StoreTerms& where, const JoinTerms& terms, const Deadline& deadline,
                       const ErrorContext& context) {
  using std::chrono::milliseconds;
  for (milliseconds pause(1); !store.open(where.endpoint, deadline.end());
       pause = std::min(2 * pause, milliseconds(100))) {
    if (deadline.expired())
      throw TimeoutError("timed out after " + terms.deadline.to_string() + ": cannot reach torchrun's store at " +
                             where.endpoint.to_string() + " (" + store.problem() + ")",
                         context);
    std::this_thread::sleep_for(pause);
  }
}

/// Returns the group of ranks that meet in torchrun's store. Collective.
///
/// The store only carries rank 0's address and a random token of this start. Everything else is sent over rank 0's own
/// connections, which notice at once when a process exits; through the store, ranks would have to ask again and again.
[[nodiscard]] inline std::shared_ptr<TcpGroup> start_by_store(const StoreTerms& where, JoinTerms terms) {
  const ErrorContext context{.operation = "connect", .backend = "tcp", .rank = terms.rank, .size = terms.size};
  const Deadline deadline(terms.deadline);
  const auto key = where.prefix + "rank 0";
  auto store = std::make_shared<StoreClient>();
  open_store(*store, where, terms, deadline, context);
  if (terms.rank == 0) {
    terms.token = hexadecimal(random_digest());
    // On several hosts: the address by which this host reaches the store. Where a host's name stands for loopback, the
    // others know it by that name.
    const SocketAddress own = store->own_address();
    const bool has_address = !where.on_one_host && !own.is_loopback();
    const Endpoint bound{where.on_one_host ? "127.0.0.1" : has_address ? own.to_string() : "0.0.0.0", 0};
    const auto [addresses, problem] = resolve(bound);
    if (addresses.empty()) throw ConnectError(problem, context);
    Listener listener(addresses[0], bound, context);
    const std::string host = where.on_one_host || has_address ? bound.host : where.endpoint.host;
    if (!store->set(key, published_address({{host, listener.endpoint().port}, terms.token, false}), deadline.end()))
      throw ConnectError("torchrun's store at " + where.endpoint.to_string() + " failed: " + store->problem(), context);
    return make_here<TcpGroup>(terms, std::move(listener), deadline);
  }
  // An address that an earlier start has left in the store answers no longer, or to another token: the key is
  // read once more for each attempt.
  return join_group(
      terms,
      [=](Deadline::clock::time_point end) -> std::optional<RootAddress> {
        if (!store->is_open() && !store->open(where.endpoint, end)) return std::nullopt;
        const auto text = store->get(key, end);
        return text ? address_from(*text) : std::nullopt;
      },
      deadline);
}

}  // namespace distx::detail::tcp
