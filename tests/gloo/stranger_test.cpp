// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Strangers that connect to the ports at which ranks listen for each other.
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <thread>

#include "connect/over_tcp.hpp"
#include "distx/comm.hpp"
#include "distx/gloo.hpp"
#include "distx/gloo/detail/links.hpp"
#include "distx/threads.hpp"

namespace {

using namespace std::chrono_literals;
using Comm = distx::GlooCommunicator;
using Sockets = std::vector<test::tcp::Descriptor>;

/// Returns the ports at which this process listens.
std::vector<int> listening_ports() {
  std::vector<int> ports;
  for (int file = 0; file < 256; ++file) {
    int listens = 0;
    socklen_t bytes = sizeof listens;
    sockaddr_in address{};
    socklen_t room = sizeof address;
    if (::getsockopt(file, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens == 0) continue;
    if (::getsockname(file, reinterpret_cast<sockaddr*>(&address), &room) == 0 && address.sin_family == AF_INET)
      ports.push_back(ntohs(address.sin_port));
  }
  return ports;
}

/// A newer Gloo listens at one port of the process, and takes no connection that does not begin with a number that it
/// has drawn for it: strangers then delay nothing.
constexpr bool listens_once = distx::detail::gloo_devices_listen<>;

/// Connects to each port at which this process listens.
Sockets strangers() {
  Sockets all;
  for (const int port : listening_ports()) {
    const auto address = test::tcp::resolve({"127.0.0.1", port}).addresses.at(0);
    auto socket = test::tcp::connected_socket(address, distx::Deadline(20s).end());
    if (socket) all.push_back(std::move(socket));
  }
  return all;
}

/// A thread's connector whose rank 0, before it sends the addresses at which it listens, has strangers connect to all
/// ports of the process.
class BesiegedConnector {
 public:
  BesiegedConnector(distx::ThreadConnector& connector, std::function<void()> attack)
      : connector_(&connector), attack_(std::move(attack)) {}

  [[nodiscard]] int rank() const noexcept { return connector_->rank(); }
  [[nodiscard]] int size() const noexcept { return connector_->size(); }
  [[nodiscard]] int local_rank() const noexcept { return connector_->local_rank(); }
  [[nodiscard]] int local_size() const noexcept { return connector_->local_size(); }
  [[nodiscard]] int root_rank() const noexcept { return connector_->root_rank(); }
  void barrier() { connector_->barrier(); }
  void broadcast(std::span<std::byte> bytes, int root) { connector_->broadcast(bytes, root); }
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
    if (send.size() == sizeof(distx::detail::GlooAddress) * static_cast<std::size_t>(size())) {
      connector_->barrier();  // all ranks listen
      if (rank() == 0) attack_();
      connector_->barrier();
    }
    connector_->all_gather(send, receive);
  }

 private:
  distx::ThreadConnector* connector_;
  std::function<void()> attack_;
};

void check_sum(Comm& comm) {
  std::vector<float> ones(10000, 1.0f);
  distx::all_reduce(comm, ones, distx::sum);
  CHECK(ones == std::vector<float>(10000, static_cast<float>(comm.size())));
}

/// Makes a communicator of 3 ranks while `attack` runs at each attempt; returns the message of what each rank threw.
std::array<std::string, 3> besieged(const std::function<void()>& attack, distx::Timeout deadline) {
  std::array<std::string, 3> messages;
  distx::spawn(3, [&](distx::ThreadConnector& thread) {
    BesiegedConnector connector(thread, attack);
    try {
      Comm comm(connector, {.deadline = deadline});
      check_sum(comm);
    } catch (const distx::ConnectError& error) {
      messages[static_cast<std::size_t>(connector.rank())] = error.message();
    }
  });
  return messages;
}

TEST_CASE("a silent stranger does not take the place of a rank of Gloo, and receives no data") {
  Sockets silent;
  const auto messages = besieged(
      [&] {
        if (silent.empty()) silent = strangers();
      },
      4s);
  CHECK(messages == std::array<std::string, 3>{});
  CHECK(silent.size() == (listens_once ? 1 : 6));
  for (const auto& stranger : silent) {
    if (listens_once) ::shutdown(stranger.native_handle(), SHUT_RDWR);  // Gloo keeps the connection
    std::array<char, 4096> received{};
    std::size_t bytes = 0;
    for (ssize_t now = 1; now > 0; bytes += static_cast<std::size_t>(std::max<ssize_t>(now, 0)))
      now = ::recv(stranger.native_handle(), received.data(), received.size(), 0);
    CHECK(bytes <= 96);  // Gloo's announcements of what a rank sends and receives
  }
}

/// Speaks Gloo's protocol until the connection is closed: once the rank receives, sends a nonce that is not its own,
/// and asks for the one that the rank sends.
void send_wrong_nonce(const test::tcp::Descriptor& stranger) {
  struct Preamble {
    std::size_t bytes, opcode, slot, offset, length, offset_there;
  };
  constexpr std::size_t sends = 1, announces = 2, receives = 3;
  const std::size_t slot = distx::detail::gloo_nonce_slot, length = sizeof(distx::detail::GlooNonce);
  Preamble in{};
  if (listens_once) {
    (void)::send(stranger.native_handle(), &in, sizeof in, MSG_NOSIGNAL);
    ::shutdown(stranger.native_handle(), SHUT_RDWR);
  }
  while (::recv(stranger.native_handle(), &in, sizeof in, MSG_WAITALL) == sizeof in) {
    if (in.opcode != receives) continue;
    const struct {
      Preamble announcement, data;
      distx::detail::GlooNonce nonce;
      Preamble request;
    } out{{sizeof(Preamble), announces, slot, 0, length, 0},
          {sizeof(Preamble) + length, sends, slot, 0, length, 0},
          {},
          {sizeof(Preamble), receives, slot, 0, length, 0}};
    (void)::send(stranger.native_handle(), &out, sizeof out, MSG_NOSIGNAL);
  }
}

TEST_CASE("a stranger that speaks Gloo's protocol does not take the place of a rank") {
  std::vector<std::jthread> threads;
  int attacks = 0;
  const auto messages = besieged(
      [&] {
        if (++attacks > 1) return;
        for (auto& stranger : strangers())
          threads.emplace_back([socket = std::move(stranger)] { send_wrong_nonce(socket); });
      },
      60s);
  CHECK(messages == std::array<std::string, 3>{});
  CHECK(attacks == (listens_once ? 1 : 2));
}

TEST_CASE("strangers that close their connections delay the construction over Gloo") {
  int attacks = 0;
  const auto messages = besieged(
      [&] {
        if (++attacks <= 2) (void)strangers();
      },
      20s);
  CHECK(messages == std::array<std::string, 3>{});
  CHECK(attacks == (listens_once ? 1 : 3));
}

TEST_CASE("strangers at every attempt are a ConnectError on every rank") {
  const auto messages = besieged([] { (void)strangers(); }, 20s);
  for (const auto& message : messages) {
    CHECK((message.find("cannot connect") != std::string::npos) != listens_once);
    CHECK(message == messages[0]);
  }
}

TEST_CASE("strangers do not take the place of a rank of a group that is split over Gloo") {
  std::atomic<bool> splits{false};
  std::atomic<int> met{0};
  distx::spawn(2, [&](distx::ThreadConnector& connector) {
    Comm comm(connector, {.deadline = 30s});
    std::jthread attack;
    for (int round = 0; round < 20 && met < 3; ++round) {
      connector.barrier();
      const int before = met;
      if (comm.rank() == 0) {
        splits = true;
        attack = std::jthread([&] {
          while (splits && met == before) met += static_cast<int>(strangers().size());
        });
      }
      auto part = comm.split(0, comm.rank());
      check_sum(part);
      splits = false;
      attack = {};
      connector.barrier();
    }
  });
  CHECK(met >= 3);
}

}  // namespace
