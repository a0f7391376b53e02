// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>

#include "distx/connect/tcp/detail/transport.hpp"

namespace distx::inline DISTX_ABI::detail::tcp {

/// Locates rank 0 at a known endpoint.
[[nodiscard]] inline Locate at(const Endpoint& endpoint, const JoinTerms& terms) {
  return [root = RootAddress{endpoint, terms.token}](auto) { return std::optional(root); };
}

/// Returns the group of a process that joins a running job. Blocks until the ranks of the job call `grow`.
[[nodiscard]] inline std::shared_ptr<ControlGroup> join_running(const Endpoint& endpoint, JoinTerms terms) {
  const ErrorContext context{.operation = "connect", .backend = "tcp"};
  const Deadline deadline(terms.deadline);
  if (terms.token.empty()) terms.token = token_from_environment();
  terms.rank = terms.size = 0;
  std::optional<ProvenSocket> root;
  try {
    root = connect_to_root(at(endpoint, terms), terms.deadline, deadline, context);
  } catch (const TimeoutError&) {
    throw ConnectError("timed out after " + terms.deadline.to_string() + ": no job runs at " + endpoint.to_string() +
                           ": correct the address, or unset DISTX_JOIN to start a job",
                       context);
  }
  return join(terms, std::move(*root), deadline);
}

/// Returns rank 0's group at an endpoint, which it listens at.
///
/// If the port is in use, that may be another rank 0, which is notified so that every rank throws; or a process of an
/// earlier job that is about to end, which is waited for up to three seconds.
[[nodiscard]] inline std::shared_ptr<ControlGroup> serve_at(const Endpoint& endpoint, const std::string& bind,
                                                            const JoinTerms& terms, const Deadline& deadline) {
  const auto context = terms.where();
  const auto give_up = std::min(deadline.end(), Deadline::clock::now() + std::chrono::seconds(3));
  const Endpoint bound{bind.empty() ? endpoint.host : bind, endpoint.port};
  for (;;) {
    const auto [addresses, problem] = resolve(bound);
    if (addresses.empty()) throw ConnectError(problem, context);
    if (terms.token.empty() && !addresses[0].is_loopback())
      throw ConnectError(bound.to_string() + " (" + addresses[0].to_string() +
                             ") is not a loopback address, and rank 0 serves other hosts only with a token: set "
                             "DISTX_TOKEN on every rank, or DISTX_TOKEN_FILE to a file of mode 0600",
                         context);
    try {
      return serve(terms, Listener(addresses[0], bound, context), deadline);
    } catch (const ConnectError& error) {
      if (error.code() != EADDRINUSE || Deadline::clock::now() >= give_up) throw;
    }
    std::optional<ProvenSocket> other;
    try {
      const Timeout briefly = std::chrono::milliseconds(300);
      other = connect_to_root(at(endpoint, terms), briefly, Deadline(briefly), context);
    } catch (const Error&) {  // another program
    }
    JoinTerms as_second = terms;
    as_second.deadline = std::chrono::seconds(1);
    try {
      if (other) (void)join(as_second, std::move(*other), Deadline(as_second.deadline));
    } catch (const RankFailure&) {  // it has ended: the port may be free now
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

/// Returns the group of a rank whose rank 0 listens at a known endpoint. Collective.
[[nodiscard]] inline std::shared_ptr<ControlGroup> start_group(const Endpoint& endpoint, const std::string& bind,
                                                               JoinTerms terms) {
  const ErrorContext context{.operation = "connect", .backend = "tcp"};
  const Deadline deadline(terms.deadline);
  control::check_rank(terms.rank, terms.size, "tcp");
  if (endpoint.host.empty()) throw ConnectError("the host is empty", context);
  if (endpoint.port < 1 || endpoint.port > 65535)
    throw ConnectError("invalid port " + std::to_string(endpoint.port) + ": must be in [1, 65535]", context);
  if (terms.token.empty()) terms.token = token_from_environment();
  if (terms.rank == 0) return serve_at(endpoint, bind, terms, deadline);
  return join(terms, connect_to_root(at(endpoint, terms), terms.deadline, deadline, terms.where()), deadline);
}

}  // namespace distx::inline DISTX_ABI::detail::tcp
