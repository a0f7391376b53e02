// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>
#include <thread>

#include "distx/connect/tcp/detail/handshake.hpp"
#include "distx/connect/tcp/detail/transport.hpp"

namespace distx::inline DISTX_ABI::detail::tcp {

/// Where rank 0 listens, and the token that it knows.
struct RootAddress {
  Endpoint endpoint;
  std::string token;
  bool is_certain = true;  ///< false if it may be that of an earlier job
};

/// Returns the address of rank 0 if it is known now; called before each attempt to connect. Blocks until the given time
/// at most.
using Locate = std::function<std::optional<RootAddress>(time_point)>;

/// A socket to rank 0 over which both sides have proven the token.
struct ProvenSocket {
  BufferedSocket socket;
  Endpoint endpoint;
};

/// Connects to rank 0: tries again, with growing pauses, until the deadline.
/// @throws ConnectError if another attempt would not help; TimeoutError at the deadline
[[nodiscard]] inline ProvenSocket connect_to_root(const Locate& locate, const JoinTerms& terms,
                                                  const Deadline& deadline) {
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
  const auto attempt = [&](time_point end) -> std::optional<ProvenSocket> {
    const auto root = locate(end);
    if (!root) return std::nullopt;
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
      if (auto found = prove_as_rank(socket, root->token, end))
        problem = std::move(*found);
      else
        return ProvenSocket{std::move(socket), root->endpoint};
      problem.is_final = problem.is_final && root->is_certain;
      if (problem.is_final) break;
    }
    return std::nullopt;
  };
  for (milliseconds pause(1);; pause = std::min(2 * pause, milliseconds(100))) {
    // A process there that does not answer is given up after a while, in case it is not rank 0.
    const auto end = std::min(deadline.end(), Deadline::clock::now() + std::chrono::seconds(10));
    if (auto connected = attempt(end)) return std::move(*connected);
    if (problem.is_final) throw ConnectError("cannot join rank 0" + where + ": " + problem.text, terms.where());
    if (deadline.expired()) throw TimeoutError(overdue(), terms.where());
    warning(terms.where(), overdue);
    std::this_thread::sleep_for(std::min<Deadline::clock::duration>(pause, deadline.end() - Deadline::clock::now()));
  }
}

}  // namespace distx::inline DISTX_ABI::detail::tcp
