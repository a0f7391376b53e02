// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/connect.hpp"
#include "distx/connect/tcp/start_group.hpp"
#include "distx/pmix/detail/session.hpp"

namespace distx::inline DISTX_ABI::detail::pmix {

/// Joins the ranks of a launcher with PMIx. Collective.
///
/// PMIx only carries rank 0's address and a random token: its notifications of failures are not delivered by every
/// launcher, whereas a connection over TCP ends when a process does.
[[nodiscard]] inline AnyConnector connect_by_pmix() {
  const PmixSession session({.operation = "connect", .backend = "pmix"});
  const tcp::JoinTerms terms{session.rank(), session.size(), default_deadline, {}};
  if (terms.size == 1) return SelfConnector();
  constexpr const char* key = "distx.rank0";
  if (terms.rank != 0) session.fence(terms.deadline);
  const bool on_one_host = session.local_size() == terms.size;
  return tcp::connect_by({.bind = on_one_host ? "127.0.0.1" : "0.0.0.0",
                          .host = on_one_host ? "127.0.0.1" : posix::host_name(),
                          .publish =
                              [&](const std::string& address) {
                                session.put(key, address);
                                session.fence(terms.deadline);
                              },
                          .read = [&](auto) { return std::optional(session.get(key, 0)); }},
                         terms);
}

/// Lets `connect()` join the ranks of a launcher with PMIx once this header is included. A program that also includes
/// MPI's header uses MPI.
inline const Launcher launcher{
    .name = "pmix",
    .started_by_it =
        [] {
          return launcher_named("mpi") == nullptr && !variable("PMIX_NAMESPACE").empty() &&
                 !variable("PMIX_RANK").empty();
        },
    .connect = [](int&, char**&) -> AnyConnector { return connect_by_pmix(); },
    .reason = [] { return std::string("PMIX_NAMESPACE is set"); },
};

inline const bool launcher_is_registered = register_launcher(launcher);

}  // namespace distx::inline DISTX_ABI::detail::pmix
