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
inline tcp::Descriptor stranger(int port) {
  const auto address = tcp::resolve({"127.0.0.1", port}).addresses.at(0);
  const distx::Deadline deadline(std::chrono::seconds(20));
  for (;;) {
    auto socket = tcp::open_socket(address);
    if (tcp::connect_socket(socket, address, deadline.end()) == 0) return socket;
    if (deadline.expired()) throw std::runtime_error("there is no listener");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace test
