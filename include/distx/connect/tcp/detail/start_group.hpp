// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>

#include "distx/connect/tcp/detail/connect_to_root.hpp"
#include "distx/connect/tcp/detail/hub.hpp"

namespace distx::inline DISTX_ABI::detail::tcp {

using control::ControlGroup;

/// Returns what is left of a wait.
[[nodiscard]] inline Timeout remaining(const Deadline& deadline) {
  return deadline.unlimited() ? Timeout(no_timeout) : deadline.end() - Deadline::clock::now();
}

/// Returns a rank's group once all ranks have joined; or that of a process that joins a running job, once the ranks of
/// the job have called `grow`. Blocks until then.
/// @param job  the running job, for messages; empty if it is not one
/// @param deadline  of the call, which may have begun before
[[nodiscard]] inline std::shared_ptr<ControlGroup> await_group(const JoinTerms& terms,
                                                               std::shared_ptr<TcpTransport> transport,
                                                               const Deadline& deadline, const std::string& job = {}) {
  const auto context = terms.where();
  const std::string after = "timed out after " + terms.deadline.to_string() + ": ";
  try {
    auto next = transport->wait(remaining(deadline), context, &control::Inbox::await_next);
    if (!next && job.empty()) throw TimeoutError(after + "rank 0 does not answer", context);
    if (!next)
      throw ConnectError(after + job + " has not admitted this process: its ranks must call grow() from time to time",
                         context);
    if (job.empty() && next->size() != terms.size)
      throw ConnectError("rank 0 welcomes " + std::to_string(next->size()) + " ranks", context);
    return make_here<ControlGroup>("tcp", terms.deadline, *next, transport);
  } catch (const Error& error) {
    transport->close(TcpTransport::after_error);
    if (!job.empty() && is_rank_loss(error))
      throw ConnectError(job + " ended before it admitted this process", context);
    throw;
  }
}
/// Returns rank 0's group.
[[nodiscard]] inline std::shared_ptr<ControlGroup> serve(const JoinTerms& terms, Listener listener,
                                                         const Deadline& deadline) {
  return await_group(terms, std::make_shared<Hub>(std::move(listener), terms, deadline), deadline);
}
/// Returns the group of another rank, or of a process that joins a running job, which has connected.
[[nodiscard]] inline std::shared_ptr<ControlGroup> join(const JoinTerms& terms, ProvenSocket root,
                                                        const Deadline& deadline) {
  const bool is_running = terms.size == 0;
  const auto address = root.endpoint.to_string();
  const auto name = is_running ? "rank 0" : control::name_of(0, terms.size);
  auto spoke = std::make_shared<Spoke>(std::move(root.socket), name + " (at " + address + ") exited unexpectedly");
  control::FrameWriter hello(control::FrameKind::hello);
  hello.number(terms.rank).number(terms.size).number(control::milliseconds_of(terms.deadline));
  hello.number(control::milliseconds_of(remaining(deadline))).text(posix::this_process().text());
  spoke->submit(hello.finish());
  return await_group(terms, std::move(spoke), deadline, is_running ? "the job at " + address : "");
}

/// Locates rank 0 at a known endpoint.
[[nodiscard]] inline Locate at(const Endpoint& endpoint, const JoinTerms& terms) {
  return [root = RootAddress{endpoint, terms.token}](auto) { return std::optional(root); };
}

/// Returns the group of a process that joins a running job. Blocks until the ranks of the job call `grow`.
[[nodiscard]] inline std::shared_ptr<ControlGroup> join_running(const Endpoint& endpoint, JoinTerms terms) {
  const Deadline deadline(terms.deadline);
  if (terms.token.empty()) terms.token = token_from_environment();
  terms.rank = terms.size = 0;
  std::optional<ProvenSocket> root;
  try {
    root = connect_to_root(at(endpoint, terms), terms, deadline);
  } catch (const TimeoutError&) {
    throw ConnectError("timed out after " + terms.deadline.to_string() + ": no job runs at " + endpoint.to_string() +
                           ": correct the address, or unset DISTX_JOIN to start a job",
                       terms.where());
  }
  return join(terms, std::move(*root), deadline);
}

/// Returns rank 0's group at an endpoint, which it listens at.
///
/// If the port is in use: notifies another rank 0, so that every rank throws; retries for three seconds while a process
/// of an earlier job ends.
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
    JoinTerms as_second = terms;
    as_second.deadline = std::chrono::seconds(1);
    try {
      other = connect_to_root(at(endpoint, terms), as_second, Deadline(std::chrono::milliseconds(300)));
    } catch (const Error&) {  // another program
    }
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
  return join(terms, connect_to_root(at(endpoint, terms), terms, deadline), deadline);
}

}  // namespace distx::inline DISTX_ABI::detail::tcp
