// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "connect/connectors.hpp"
#include "connect/in_folder.hpp"
#include "distx/connect/tcp/detail/start_by_store.hpp"

// Ranks over TCP on loopback, each a thread of the test with its own connector.
namespace test {

namespace tcp = distx::detail::tcp;

inline tcp::Listener listen_on_loopback() {
  const distx::ErrorContext context{.operation = "test"};
  return tcp::Listener(tcp::resolve({"127.0.0.1", 0}).addresses.at(0), {"127.0.0.1", 0}, context);
}

/// Returns a port of loopback that no program listens at.
inline int free_port() { return listen_on_loopback().endpoint().port; }

inline std::vector<std::string> each_over_tcp(int ranks, const std::function<void(distx::TcpConnector&)>& body,
                                              const distx::TcpConnectorOptions& options = {
                                                  .deadline = std::chrono::seconds(60)}) {
  const int port = free_port();
  return each(ranks, [&](int rank) {
    distx::TcpConnector connector("127.0.0.1", port, rank, ranks, options);
    body(connector);
  });
}

/// Connects to a port of loopback without saying anything.
inline tcp::BufferedSocket stranger(int port) {
  const auto address = tcp::resolve({"127.0.0.1", port}).addresses.at(0);
  const distx::Deadline deadline(std::chrono::seconds(20));
  for (;;) {
    tcp::BufferedSocket socket(tcp::connected_socket(address, deadline.end()));
    if (socket.is_open()) return socket;
    if (deadline.expired()) throw std::runtime_error("there is no listener");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}
/// Sends bytes; returns whether the system has taken them within twenty seconds.
inline bool send(tcp::BufferedSocket& socket, std::string_view bytes) {
  socket.append(bytes);
  return socket.exchange(0, distx::Deadline(std::chrono::seconds(20)).end()) == 0;
}
/// Receives that many bytes; none unless they arrive within twenty seconds.
inline std::string receive(tcp::BufferedSocket& socket, std::size_t count) {
  const auto end = distx::Deadline(std::chrono::seconds(20)).end();
  return socket.exchange(count, end) == 0 ? socket.take(count) : std::string();
}
/// Accepts a connection within twenty seconds.
inline tcp::BufferedSocket accept(const tcp::Listener& listener) {
  (void)tcp::await_events(listener.native_handle(), POLLIN, distx::Deadline(std::chrono::seconds(20)).end());
  return tcp::BufferedSocket(
      tcp::Descriptor::from_native_handle(::accept4(listener.native_handle(), nullptr, nullptr, SOCK_NONBLOCK)));
}
/// Receives a challenge; returns the answer of a rank that knows the token.
inline std::string answer_to_challenge(tcp::BufferedSocket& socket, std::string_view token) {
  const auto challenge = receive(socket, tcp::greeting_bytes);
  if (challenge.empty()) throw std::runtime_error("no challenge");
  const std::string nonce(tcp::digest_bytes, 'n');
  return tcp::greeting(nonce) + tcp::proof(token, "rank", challenge.substr(tcp::magic.size()), nonce);
}

}  // namespace test
