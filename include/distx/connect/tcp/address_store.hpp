// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "distx/connect/detail/variables.hpp"
#include "distx/connect/tcp/detail/start_group.hpp"
#include "distx/connect/tcp/tcp_connector.hpp"
#include "distx/posix/random_name.hpp"

namespace distx::inline DISTX_ABI::detail::tcp {

/// A place where rank 0 publishes its address for the others, such as a launcher's store of keys and values.
///
/// It only carries the address and a random token of this start. Everything else is sent over rank 0's own connections,
/// which notice at once when a process exits; through a store, ranks would have to ask again and again.
struct AddressStore {
  std::string bind;  ///< what rank 0 binds, at a free port
  std::string host;  ///< the name by which the others reach it
  std::function<void(const std::string&)> publish;
  /// Returns what rank 0 has published, if it is there now; called before each attempt to connect, since an earlier
  /// start may have left an address that answers no longer, or to another token. Blocks until the given time at most.
  std::function<std::optional<std::string>(Deadline::clock::time_point)> read;
};

[[nodiscard]] inline std::optional<RootAddress> address_from(const std::string& text) {
  const auto first = text.find(' '), last = text.rfind(' ');
  if (first == std::string::npos || first == last) return std::nullopt;
  const auto port = parse_int(std::string_view(text).substr(first + 1, last - first - 1));
  if (!port || *port < 1 || *port > 65535) return std::nullopt;
  return RootAddress{{text.substr(0, first), *port}, text.substr(last + 1), false};
}

/// Returns the connector of a rank that finds rank 0 by a store. Collective.
/// @param deadline  of the call, which may have begun before
[[nodiscard]] inline TcpConnector connect_by(const AddressStore& store, JoinTerms terms, const Deadline& deadline) {
  control::check_rank(terms.rank, terms.size, "tcp");
  if (terms.rank != 0) {
    const auto locate = [&](Deadline::clock::time_point end) -> std::optional<RootAddress> {
      const auto text = store.read(end);
      if (!text) return std::nullopt;
      auto root = address_from(*text);
      if (!root) throw ConnectError("rank 0 has published a malformed address '" + *text + "'", terms.where());
      return root;
    };
    return TcpConnector(join(terms, connect_to_root(locate, terms, deadline), deadline));
  }
  terms.token = posix::random_name(64);
  const Endpoint bound{store.bind, 0};
  const auto [addresses, problem] = resolve(bound);
  if (addresses.empty()) throw ConnectError(problem, terms.where());
  Listener listener(addresses[0], bound, terms.where());
  store.publish(store.host + " " + std::to_string(listener.endpoint().port) + " " + terms.token);
  return TcpConnector(serve(terms, std::move(listener), deadline));
}

}  // namespace distx::inline DISTX_ABI::detail::tcp
