// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Processes without the token that connect to rank 0. The ranks are processes with separate limits.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <vector>

#include "connect/over_tcp.hpp"
#include "shm/forked.hpp"

namespace {

using namespace std::chrono_literals;
using distx::TcpConnector;
namespace tcp = test::tcp;

/// The state of an attack on rank 0's port.
struct Attack {
  int port;
  std::function<void()> begin;  ///< lets rank 1 start
  std::function<bool()> over;   ///< both ranks have ended
};

/// Runs two ranks over TCP that know the token, and strangers, each a process. Returns how the ranks ended.
/// @param files  the most files that a rank may open
std::vector<int> attacked(rlim_t files, const std::function<void(TcpConnector&)>& rank, int strangers,
                          const std::function<void(const Attack&)>& stranger) {
  const int port = test::free_port();
  auto ended = test::forked(2 + strangers, [&](test::ForkedConnector& process, test::Board& board) {
    std::atomic<std::uint64_t>& begun = board.ranks[0].arrived;
    if (process.rank() >= 2) {
      stranger({port, [&] { begun = 1; }, [&] { return board.steps == 2; }});
      return 0;
    }
    int status = 1;
    try {
      const rlimit limit{files, files};
      ::setrlimit(RLIMIT_NOFILE, &limit);
      if (process.rank() == 1) distx::detail::wait_until(20s, [&] { return begun == 1; }, [] { return false; });
      TcpConnector connector("127.0.0.1", port, process.rank(), 2, {.deadline = 60s, .token = "secret"});
      rank(connector);
      status = 0;
    } catch (const std::exception& error) {
      std::cerr << "rank " << process.rank() << ": " << error.what() << std::endl;
    }
    ++board.steps;
    return status;
  });
  ended.resize(2);
  return ended;
}

TEST_CASE("ranks meet and make calls while strangers connect and leave as fast as they can") {
  for (const bool garbage : {false, true}) {
    const auto ended = attacked(
        1024,
        [](TcpConnector& connector) {
          for (int round = 0; round < 100; ++round) connector.barrier();
        },
        2,
        [&](const Attack& attack) {
          (void)test::stranger(attack.port);  // rank 0 listens
          const auto address = tcp::resolve({"127.0.0.1", attack.port}).addresses.at(0);
          for (int i = 0; !attack.over(); ++i) {
            if (i == 5000) attack.begin();
            const auto socket = tcp::open_socket(address);
            (void)!::connect(socket.native_handle(), address.get(), address.length);
            if (garbage) (void)!::send(socket.native_handle(), "garbage", 7, MSG_NOSIGNAL);
          }
        });
    CHECK(ended == std::vector<int>{0, 0});
  }
}

TEST_CASE("strangers that stay keep no rank away, and leave half of rank 0's files to its program") {
  constexpr rlim_t files = 64;
  const auto ended = attacked(
      files,
      [](TcpConnector& connector) {
        connector.barrier();
        std::vector<tcp::Descriptor> open;
        while (connector.rank() == 0 && open.size() < files / 2 - 16)
          if (!open.emplace_back(tcp::Descriptor::from_native_handle(::open("/dev/null", O_RDONLY | O_CLOEXEC))))
            throw std::runtime_error("rank 0 cannot open file " + std::to_string(open.size()));
        connector.barrier();
      },
      1,
      [](const Attack& attack) {
        (void)test::stranger(attack.port);
        const auto address = tcp::resolve({"127.0.0.1", attack.port}).addresses.at(0);
        const auto connected = [&] {
          auto socket = tcp::open_socket(address);
          (void)!::connect(socket.native_handle(), address.get(), address.length);
          return socket;
        };
        std::vector<tcp::Descriptor> idle;
        for (int i = 0; i < 3000; ++i) idle.push_back(connected());
        for (attack.begin(); !attack.over(); std::this_thread::sleep_for(10ms))
          for (auto& socket : idle) {
            char bytes[64];
            const auto count = ::recv(socket.native_handle(), bytes, sizeof bytes, 0);
            if (count == 0 || (count < 0 && errno != EAGAIN)) socket = connected();
          }
      });
  CHECK(ended == std::vector<int>{0, 0});
}

TEST_CASE("a turn that accepts no connections, since others were closed for them, ends when it may accept again") {
  const auto ended = test::forked(1, [](test::ForkedConnector&, test::Board&) {
    using Clock = distx::Deadline::clock;
    const rlimit limit{256, 256};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    const auto listener = test::listen_on_loopback();
    tcp::HubConnections accepted;
    std::vector<tcp::BufferedSocket> connections;
    while (connections.size() < 100) {
      connections.push_back(test::stranger(listener.endpoint().port));
      accepted.admit(accepted.accept_some(listener), 0);
      const auto turn = Clock::now();
      if (accepted.may_accept(turn)) continue;
      while (!accepted.may_accept(Clock::now())) std::this_thread::yield();
      return accepted.next_end(turn) <= Clock::now() ? 0 : 1;
    }
    return 2;
  });
  CHECK(ended == std::vector<int>{0});
}

TEST_CASE("the time that rank 0 has waited for its port counts into its deadline") {
  const tcp::JoinTerms terms{
      .rank = 0, .size = 2, .deadline = std::chrono::hours(1), .token = {}, .end = distx::Deadline(10ms)};
  const int port = test::free_port();
  CHECK_THROWS_AS(static_cast<void>(tcp::serve_at({"127.0.0.1", port}, "", terms)), distx::TimeoutError);
}

}  // namespace
