// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>

#include "distx/connect/connect.hpp"
#include "distx/connect/tcp/detail/start_by_store.hpp"
#include "distx/connect/tcp/tcp_connector.hpp"
#include "distx/pmix/detail/session.hpp"

namespace distx::detail::pmix {

/// Joins the ranks of a launcher with PMIx. Collective.
///
/// PMIx only carries rank 0's address and a random token: its notifications of failures are not delivered by every
/// launcher, whereas a connection over TCP ends when a process does.
[[nodiscard]] inline AnyConnector connect_by_pmix() {
  const PmixSession session({.operation = "connect", .backend = "pmix"});
  tcp::JoinTerms terms{session.rank(), session.size(), default_deadline, {}};
  const Deadline deadline(terms.deadline);
  tcp::check_terms(terms);
  const ErrorContext context{.operation = "connect", .backend = "pmix", .rank = terms.rank, .size = terms.size};
  if (terms.size == 1) return SelfConnector();
  constexpr const char* key = "distx.rank0";
  if (terms.rank != 0) {
    session.fence(terms.deadline);
    auto root = tcp::address_from(session.get(key, 0));
    if (!root) throw ConnectError("rank 0 has published a malformed address", context);
    return TcpConnector(tcp::join_group(terms, [&](auto) { return root; }, deadline));
  }
  terms.token = tcp::hexadecimal(tcp::random_digest());
  const bool on_one_host = session.local_size() == terms.size;
  const tcp::Endpoint bound{on_one_host ? "127.0.0.1" : "0.0.0.0", 0};
  tcp::Listener listener(tcp::resolve(bound).addresses.at(0), bound, context);
  const tcp::Endpoint known{on_one_host ? bound.host : posix::host_name(), listener.endpoint().port};
  session.put(key, tcp::published_address({known, terms.token}));
  session.fence(terms.deadline);
  return TcpConnector(make_here<tcp::TcpGroup>(terms, std::move(listener), deadline));
}

/// Lets `connect()` join the ranks of a launcher with PMIx once this header is included. A program that also includes
/// MPI's header uses MPI.
inline const Launcher launcher{
    .name = "pmix",
    .started_by_it =
        [] {
          const auto& all = launchers();
          const bool has_mpi = std::any_of(all.begin(), all.end(), [](const auto& one) { return one.name == "mpi"; });
          return !has_mpi && !variable("PMIX_NAMESPACE").empty() && !variable("PMIX_RANK").empty();
        },
    .connect = [](int&, char**&) -> AnyConnector { return connect_by_pmix(); },
    .reason = [] { return std::string("PMIX_NAMESPACE is set"); },
};

inline const bool launcher_is_registered = register_launcher(launcher);

}  // namespace distx::detail::pmix
