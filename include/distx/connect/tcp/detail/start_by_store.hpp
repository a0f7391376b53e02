// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/tcp/address_store.hpp"
#include "distx/connect/tcp/detail/store_client.hpp"

namespace distx::inline DISTX_ABI::detail::tcp {

/// Returns the connector of ranks that meet in torchrun's store. Collective.
/// @param endpoint  where an agent serves the store
/// @param prefix  of this job's keys in it, different after each restart
/// @param on_one_host  whether all ranks are on the host of rank 0
[[nodiscard]] inline TcpConnector start_by_store(const Endpoint& endpoint, const std::string& prefix, bool on_one_host,
                                                 const JoinTerms& terms) {
  const auto context = terms.where();
  const Deadline deadline(terms.deadline);
  const auto key = prefix + "rank 0";
  StoreClient store;
  using std::chrono::milliseconds;
  for (milliseconds pause(1); !store.open(endpoint, deadline.end()); pause = std::min(2 * pause, milliseconds(100))) {
    if (deadline.expired())
      throw TimeoutError("timed out after " + terms.deadline.to_string() + ": cannot reach torchrun's store at " +
                             endpoint.to_string() + " (" + store.problem() + ")",
                         context);
    std::this_thread::sleep_for(pause);
  }
  // On several hosts: the address by which this host reaches the store. Where a host's name stands for loopback, the
  // others know it by that name.
  const SocketAddress own = store.own_address();
  const bool has_address = !on_one_host && !own.is_loopback();
  const std::string bind = on_one_host ? "127.0.0.1" : has_address ? own.to_string() : "0.0.0.0";
  return connect_by({.bind = bind,
                     .host = on_one_host || has_address ? bind : endpoint.host,
                     .publish =
                         [&](const std::string& address) {
                           if (!store.set(key, address, deadline.end()))
                             throw ConnectError(
                                 "torchrun's store at " + endpoint.to_string() + " failed: " + store.problem(),
                                 context);
                         },
                     .read = [&](Deadline::clock::time_point end) -> std::optional<std::string> {
                       if (!store.is_open() && !store.open(endpoint, end)) return std::nullopt;
                       return store.get(key, end);
                     }},
                    terms, deadline);
}

}  // namespace distx::inline DISTX_ABI::detail::tcp
