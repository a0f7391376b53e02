// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/tcp/address_store.hpp"
#include "distx/connect/tcp/detail/store_client.hpp"

namespace distx::inline DISTX_ABI::detail::tcp {

/// Where ranks find the store that an agent serves, and their keys in it.
struct StoreTerms {
  Endpoint endpoint;
  std::string prefix;       ///< of this job's keys, different after each restart
  bool on_one_host = true;  ///< all ranks are on the host of rank 0
};

/// Returns the connector of ranks that meet in torchrun's store. Collective.
[[nodiscard]] inline TcpConnector start_by_store(const StoreTerms& where, const JoinTerms& terms) {
  const auto context = terms.where();
  const Deadline deadline(terms.deadline);
  const auto key = where.prefix + "rank 0";
  StoreClient store;
  using std::chrono::milliseconds;
  for (milliseconds pause(1); !store.open(where.endpoint, deadline.end());
       pause = std::min(2 * pause, milliseconds(100))) {
    if (deadline.expired())
      throw TimeoutError("timed out after " + terms.deadline.to_string() + ": cannot reach torchrun's store at " +
                             where.endpoint.to_string() + " (" + store.problem() + ")",
                         context);
    std::this_thread::sleep_for(pause);
  }
  // On several hosts: the address by which this host reaches the store. Where a host's name stands for loopback, the
  // others know it by that name.
  const SocketAddress own = store.own_address();
  const bool has_address = !where.on_one_host && !own.is_loopback();
  const std::string bind = where.on_one_host ? "127.0.0.1" : has_address ? own.to_string() : "0.0.0.0";
  return connect_by({.bind = bind,
                     .host = where.on_one_host || has_address ? bind : where.endpoint.host,
                     .publish =
                         [&](const std::string& address) {
                           if (!store.set(key, address, deadline.end()))
                             throw ConnectError(
                                 "torchrun's store at " + where.endpoint.to_string() + " failed: " + store.problem(),
                                 context);
                         },
                     .read = [&](Deadline::clock::time_point end) -> std::optional<std::string> {
                       if (!store.is_open() && !store.open(where.endpoint, end)) return std::nullopt;
                       return store.get(key, end);
                     }},
                    terms, deadline);
}

}  // namespace distx::inline DISTX_ABI::detail::tcp
