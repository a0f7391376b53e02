// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Connectors that are destroyed after an error was caught in their scope, while a rank does not enter its calls any
// more.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "connect/over_tcp.hpp"
#include "logged.hpp"
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

/// Returns what rank 0 of 2, a process, writes to stderr.
template <class F>
std::string written_by(F&& rank) {
  const test::NewFolder folder;
  const auto path = (folder.path() / "stderr").string();
  (void)test::forked(2, [&](test::ForkedConnector& process, test::Board& board) {
    ::setenv("DISTX_LOG", "info", 1);
    if (process.rank() == 0 && std::freopen(path.c_str(), "w", stderr) == nullptr) return 1;
    rank(process, board);
    std::fflush(stderr);
    return 0;
  });
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_CASE("with DISTX_LOG=info a wait says once, after a quarter of its deadline, which ranks are missing") {
  const auto call = written_by([](test::ForkedConnector& process, test::Board& board) {
    distx::ShmCommunicator comm(process, 4s);
    if (process.rank() == 0)
      (void)test::error_of<distx::TimeoutError>([&] { distx::barrier(comm); });
    else
      distx::detail::wait_until(20s, [&] { return board.steps == 1; }, [] { return false; });
    board.steps = 1;
  });
  CHECK(call.starts_with("distx: barrier on rank 0 of 2 (shm): waiting for 1 s: rank 1 did not join"));
  CHECK(std::count(call.begin(), call.end(), '\n') == 1);
  const int port = test::free_port();
  const auto meeting = written_by([&](test::ForkedConnector& process, test::Board&) {
    if (process.rank() == 0)
      (void)test::error_of<distx::TimeoutError>(
          [&] { distx::TcpConnector("127.0.0.1", port, 0, 3, {.deadline = 4s}); });
  });
  CHECK(meeting ==
        "distx: connect on rank 0 of 3 (tcp): waiting for 1 s: ranks 1 and 2 of 3 did not join at 127.0.0.1:" +
            std::to_string(port) + '\n');
}

/// Makes a call that rank 2 of 3 does not enter; returns what the ranks, threads, write to stderr.
template <class C, class Each>
std::string written_without_rank_2(Each&& each) {
  std::atomic<int> over{0};
  return test::logged([&] {
    each([&](C& connector) {
      connector.barrier();
      if (connector.rank() == 2) {
        distx::detail::wait_until(20s, [&] { return over == 2; }, [] { return false; });
        return;
      }
      (void)test::error_of<distx::TimeoutError>([&] { connector.barrier(); });
      ++over;
    });
  });
}

TEST_CASE("with DISTX_LOG=info calls of a connector say once which ranks are missing") {
  const distx::Timeout deadline = 1200ms;
  const auto check = [](const std::string& said, const std::string& backend, std::ptrdiff_t lines) {
    CAPTURE(said);
    CHECK(said.find(" of 3 (" + backend + "): waiting for 0.3 s: rank 2 of 3 did not enter this call\n") !=
          std::string::npos);
    CHECK(std::count(said.begin(), said.end(), '\n') == lines);
    CHECK(said.starts_with("distx: barrier on rank "));
  };
  const test::NewFolder folder;
  const auto in_folder = [&](auto&& body) {
    (void)test::each(3, [&](int rank) {
      distx::FileConnector connector(folder.path(), rank, 3, {.deadline = deadline});
      body(connector);
    });
  };
  check(written_without_rank_2<distx::FileConnector>(in_folder), "file", 2);
  const auto over_tcp = [&](auto&& body) { (void)test::each_over_tcp(3, body, {.deadline = deadline}); };
  check(written_without_rank_2<distx::TcpConnector>(over_tcp), "tcp", 1);  // one root serves all
  const auto on_threads = [&](auto&& body) {
    try {
      distx::spawn(distx::threads(3, deadline), body);
    } catch (const distx::Error&) {  // the failed calls
    }
  };
  check(written_without_rank_2<distx::ThreadConnector>(on_threads), "threads", 1);
}

TEST_CASE("with DISTX_LOG=info joining says once which ranks are missing") {
  const test::NewFolder folder;
  for (const int rank : {0, 1}) {
    const auto said = test::logged([&] {
      (void)test::error_of<distx::TimeoutError>(
          [&] { distx::FileConnector(folder.path(), rank, 2, {.deadline = 400ms}); });
    });
    CHECK(said == "distx: connect on rank " + std::to_string(rank) + " of 2 (file): waiting for 0.1 s: rank " +
                      std::to_string(1 - rank) + " of 2 did not join in '" + folder.path().string() + "'\n");
  }
  const int port = test::free_port();
  const auto said = test::logged([&] {
    (void)test::error_of<distx::TimeoutError>(
        [&] { distx::TcpConnector("127.0.0.1", port, 1, 2, {.deadline = 400ms}); });
  });
  CHECK(said.starts_with("distx: connect on rank 1 of 2 (tcp): waiting for 0.1 s: cannot join rank 0 at 127.0.0.1:"));
  CHECK(std::count(said.begin(), said.end(), '\n') == 1);
}

}  // namespace
