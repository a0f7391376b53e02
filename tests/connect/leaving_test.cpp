// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Connectors that are destroyed after an error was caught in their scope, while a rank does not come any more.
#include <doctest/doctest.h>

#include "connect/over_tcp.hpp"
#include "shm/forked.hpp"
#include "words.hpp"

namespace {

using namespace std::chrono_literals;

TEST_CASE("rank 0 ends after it has caught an error, though another rank stays") {
  const int port = test::free_port();
  const auto ended = test::forked(3, [&](test::ForkedConnector& process, test::Board& board) {
    distx::TcpConnector connector("127.0.0.1", port, process.rank(), 3);  // with a deadline of ten minutes
    auto comm = std::make_unique<distx::ShmCommunicator>(connector, 500ms);
    distx::barrier(*comm);
    if (process.rank() == 1) {
      distx::detail::wait_until(40s, [&] { return board.steps == 2; }, [] { return false; });
      ::_exit(board.steps);
    }
    const auto error = test::error_of<distx::Error>([&] { distx::barrier(*comm); });
    comm.reset();
    { const auto destroyed = std::move(connector); }
    ++board.steps;
    return error == "no error" ? 1 : 0;
  });
  CHECK(ended == std::vector<int>{0, 2, 0});
}

TEST_CASE("rank 0 waits for the others after an error that all ranks have survived") {
  const int port = test::free_port();
  const auto ended = test::forked(2, [&](test::ForkedConnector& process, test::Board& board) {
    distx::TcpConnector connector("127.0.0.1", port, process.rank(), 2, {.deadline = 60s});
    {
      distx::ShmCommunicator comm(connector, 60s);
      const auto error = test::error_of<distx::RevokedError>([&] {
        if (process.rank() == 1) comm.revoke("a bad file");
        distx::barrier(comm);
      });
      if (error.find("a bad file") == std::string::npos) return 1;
    }
    connector.barrier();
    if (process.rank() == 0) {
      {
        const auto destroyed = std::move(connector);
      }
      board.steps = 1;
      return 0;
    }
    // Longer than rank 0 waits after an error.
    distx::detail::wait_until(3s, [&] { return board.steps == 1; }, [] { return false; });
    return board.steps == 0 ? 0 : 2;
  });
  CHECK(ended == std::vector<int>{0, 0});
}

}  // namespace
