// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>
#include <memory>

#include "distx/connect/tcp/detail/hub.hpp"
#include "distx/connect/tcp/tcp_connector.hpp"

// How ranks start over TCP: they find rank 0, connect to it, and become a group.
namespace distx::inline DISTX_ABI::detail::tcp {

using control::ControlGroup;

/// Where rank 0 listens, and the token that it knows.
struct RootAddress {
  Endpoint endpoint;
  std::string token;
  bool is_certain = true;  ///< false if it may be that of an earlier job
};

/// Returns the address of rank 0 if it is known now; called before each attempt to connect. Blocks until the given time
/// at most.
using Locate = std::function<std::optional<RootAddress>(time_point)>;

/// Locates rank 0 at a known endpoint.
[[nodiscard]] inline Locate at(const Endpoint& endpoint, const JoinTerms& terms) {
  return [root = RootAddress{endpoint, terms.token}](auto) { return std::optional(root); };
}

/// Connects to rank 0: tries again, with growing pauses, until the deadline. Both sides have then proven the token.
/// @throws ConnectError if another attempt would not help; TimeoutError at the deadline
[[nodiscard]] inline std::shared_ptr<Spoke> connect_to_root(const Locate& locate, const JoinTerms& terms) {
  using std::chrono::milliseconds;
  JoinProblem problem{"rank 0 has not published its address"};
  std::string where;
  // While strangers flood rank 0, the system drops most attempts; its own pauses between them grow too fast.
  milliseconds patience(250);
  EarlyWarning warning(terms.deadline);
  const auto overdue = [&] {
    return "timed out after " + terms.deadline.to_string() + ": cannot join rank 0" + where + " (" + problem.text +
           "); start rank 0, or correct the address";
  };
  const auto attempt = [&](time_point end) -> std::shared_ptr<Spoke> {
    const auto root = locate(end);
    if (!root) return nullptr;
    where = " at " + root->endpoint.to_string();
    const auto [addresses, unresolved] = resolve(root->endpoint);
    if (addresses.empty()) problem = {unresolved};
    for (const auto& address : addresses) {
      BufferedSocket socket(connected_socket(address, std::min(end, Deadline::clock::now() + patience)));
      if (!socket.is_open()) {
        if (errno == ETIMEDOUT) patience = std::min(2 * patience, milliseconds(2000));
        problem = {system_message(errno)};
        continue;
      }
      auto found = prove_as_rank(socket, root->token, end);
      if (!found) return std::make_shared<Spoke>(std::move(socket), root->endpoint, terms.size);
      problem = std::move(*found);
      problem.is_final = problem.is_final && root->is_certain;
      if (problem.is_final) break;
    }
    return nullptr;
  };
  for (milliseconds pause(1);; pause = std::min(2 * pause, milliseconds(100))) {
    // A process there that does not answer is given up after a while, in case it is not rank 0.
    const auto end = std::min(terms.end.end(), Deadline::clock::now() + std::chrono::seconds(10));
    if (auto connected = attempt(end)) return connected;
    if (problem.is_final) throw ConnectError("cannot join rank 0" + where + ": " + problem.text, terms.where());
    if (terms.end.expired()) throw TimeoutError(overdue(), terms.where());
    warning(terms.where(), overdue);
    std::this_thread::sleep_for(std::min<Deadline::clock::duration>(pause, terms.end.end() - Deadline::clock::now()));
  }
}

/// Returns a rank's group once all ranks have joined; or that of a process that joins a running job, once the ranks of
/// the job have called `grow`. Blocks until then.
/// @param job  the running job, for messages; empty if it is not one
[[nodiscard]] inline std::shared_ptr<ControlGroup> await_group(const JoinTerms& terms,
                                                               std::shared_ptr<TcpTransport> transport,
                                                               const std::string& job = {}) {
  const auto context = terms.where();
  const std::string after = "timed out after " + terms.deadline.to_string() + ": ";
  try {
    const auto next = transport->wait(control::Awaited::group, terms.remaining(), context);
    if (!next && job.empty()) throw TimeoutError(after + "rank 0 does not answer", context);
    if (!next)
      throw ConnectError(after + job + " has not admitted this process: its ranks must call grow() from time to time",
                         context);
    if (job.empty() && next->size != terms.size)
      throw ConnectError("rank 0 welcomes " + std::to_string(next->size) + " ranks", context);
    return make_here<ControlGroup>("tcp", terms.deadline, *next, transport);
  } catch (const Error& error) {
    transport->close(TcpTransport::after_error);
    if (!job.empty() && is_rank_loss(error))
      throw ConnectError(job + " ended before it admitted this process", context);
    throw;
  }
}
/// Returns the group of another rank, or of a process that joins a running job, which has connected.
/// @param job  as for `await_group`
[[nodiscard]] inline std::shared_ptr<ControlGroup> join(const JoinTerms& terms, std::shared_ptr<Spoke> spoke,
                                                        const std::string& job = {}) {
  spoke->submit({{.kind = control::FrameKind::hello,
                  .rank = terms.rank,
                  .size = terms.size,
                  .limit = terms.deadline.limit().count(),
                  .time_left = terms.remaining().limit().count()},
                 posix::this_process().text()});
  return await_group(terms, std::move(spoke), job);
}

/// Returns the group of a process that joins a running job. Blocks until the ranks of the job call `grow`.
[[nodiscard]] inline std::shared_ptr<ControlGroup> join_running(const Endpoint& endpoint, JoinTerms terms) {
  if (terms.token.empty()) terms.token = token_from_environment();
  terms.rank = terms.size = 0;
  std::shared_ptr<Spoke> root;
  try {
    root = connect_to_root(at(endpoint, terms), terms);
  } catch (const TimeoutError&) {
    throw ConnectError("timed out after " + terms.deadline.to_string() + ": no job runs at " + endpoint.to_string() +
                           ": correct the address, or unset DISTX_JOIN to start a job",
                       terms.where());
  }
  return join(terms, std::move(root), "the job at " + endpoint.to_string());
}

/// Notifies another process that serves as rank 0 at the endpoint, if there is one, so that every rank throws.
/// @throws ConnectError if there is one, or the error with which it has refused its ranks; TimeoutError if it does not
///         answer
inline void notify_other_root(const Endpoint& endpoint, JoinTerms terms) {
  terms.deadline = std::chrono::seconds(1);
  terms.end = Deadline(std::chrono::milliseconds(300));
  std::shared_ptr<Spoke> other;
  try {
    other = connect_to_root(at(endpoint, terms), terms);
  } catch (const Error&) {  // another program
    return;
  }
  terms.end = Deadline(terms.deadline);
  try {
    (void)join(terms, std::move(other));
  } catch (const RankFailure&) {  // it has ended: the port may be free now
  }
}

/// Returns rank 0's group at an endpoint, which it listens at.
///
/// If the port is in use: notifies another rank 0; retries for three seconds while a process of an earlier job ends.
[[nodiscard]] inline std::shared_ptr<ControlGroup> serve_at(const Endpoint& endpoint, const std::string& bind,
                                                            const JoinTerms& terms) {
  const auto context = terms.where();
  const auto give_up = std::min(terms.end.end(), Deadline::clock::now() + std::chrono::seconds(3));
  const Endpoint bound{bind.empty() ? endpoint.host : bind, endpoint.port};
  for (;; std::this_thread::sleep_for(std::chrono::milliseconds(50))) {
    const auto [addresses, problem] = resolve(bound);
    if (addresses.empty()) throw ConnectError(problem, context);
    if (terms.token.empty() && !addresses[0].is_loopback())
      throw ConnectError(bound.to_string() + " (" + addresses[0].to_string() +
                             ") is not a loopback address, and rank 0 serves other hosts only with a token: set "
                             "DISTX_TOKEN on every rank, or DISTX_TOKEN_FILE to a file of mode 0600",
                         context);
    try {
      return await_group(terms, std::make_shared<Hub>(Listener(addresses[0], bound, context), terms));
    } catch (const ConnectError& error) {
      if (error.code() != EADDRINUSE || Deadline::clock::now() >= give_up) throw;
    }
    notify_other_root(endpoint, terms);
  }
}

/// Returns the group of a rank whose rank 0 listens at a known endpoint. Collective.
[[nodiscard]] inline std::shared_ptr<ControlGroup> start_group(const Endpoint& endpoint, const std::string& bind,
                                                               JoinTerms terms) {
  const ErrorContext context{.operation = "connect", .backend = "tcp"};
  control::check_rank(terms.rank, terms.size, "tcp");
  if (endpoint.host.empty()) throw ConnectError("the host is empty", context);
  if (endpoint.port < 1 || endpoint.port > 65535)
    throw ConnectError("invalid port " + std::to_string(endpoint.port) + ": must be in [1, 65535]", context);
  if (terms.token.empty()) terms.token = token_from_environment();
  if (terms.rank == 0) return serve_at(endpoint, bind, terms);
  return join(terms, connect_to_root(at(endpoint, terms), terms));
}

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
  std::function<std::optional<std::string>(time_point)> read;
};

/// Returns the connector of a rank that finds rank 0 by a store. Collective.
[[nodiscard]] inline TcpConnector connect_by(const AddressStore& store, JoinTerms terms) {
  control::check_rank(terms.rank, terms.size, "tcp");
  if (terms.rank != 0) {
    const auto locate = [&](time_point end) -> std::optional<RootAddress> {
      const auto text = store.read(end);
      if (!text) return std::nullopt;
      const auto address_end = std::min(text->find(' '), text->size());
      const auto endpoint = endpoint_from(text->substr(0, address_end));
      if (address_end == text->size() || endpoint.port < 1 || endpoint.port > 65535)
        throw ConnectError("rank 0 has published a malformed address '" + *text + "'", terms.where());
      return RootAddress{endpoint, text->substr(address_end + 1), false};
    };
    return TcpConnector(join(terms, connect_to_root(locate, terms)));
  }
  terms.token = posix::random_name(64);
  const Endpoint bound{store.bind, 0};
  const auto [addresses, problem] = resolve(bound);
  if (addresses.empty()) throw ConnectError(problem, terms.where());
  Listener listener(addresses[0], bound, terms.where());
  store.publish(Endpoint{store.host, listener.endpoint().port}.to_string() + " " + terms.token);
  return TcpConnector(await_group(terms, std::make_shared<Hub>(std::move(listener), terms)));
}

}  // namespace distx::inline DISTX_ABI::detail::tcp
