// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The number of ranks of a large job.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "connect/in_folder.hpp"
#include "connect/over_tcp.hpp"
#include "needs.hpp"

namespace {

namespace control = distx::detail::control;

constexpr int ranks = 1000;

/// Raises this process's limit of open files; returns whether the system permits it.
bool may_open(rlim_t count) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_max < count) return false;
  files.rlim_cur = std::max(files.rlim_cur, count);
  return ::setrlimit(RLIMIT_NOFILE, &files) == 0;
}

TEST_CASE("a thousand ranks join over TCP with a token" *
          test::Needs("a limit of 3000 open files or more", [] { return may_open(3 * ranks); })) {
  const auto began = std::chrono::steady_clock::now();
  std::chrono::duration<double> joined{};
  const auto messages = test::each_over_tcp(ranks,
                                            [&](distx::TcpConnector& connector) {
                                              if (connector.rank() == 0)
                                                joined = std::chrono::steady_clock::now() - began;
                                              connector.barrier();
                                            },
                                            {.deadline = std::chrono::seconds(60), .token = "secret"});
  CHECK(messages == std::vector<std::string>(ranks));
  std::cout << ranks << " ranks joined in " << joined.count() << " s\n";
}

/// The memory of this process in KiB.
long resident() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "VmRSS:" && status >> word) return std::stol(word);
  return -1;
}

/// Joins as the ranks of [first, end) from one thread, and reads what rank 0 answers; returns whether all were right.
bool join_as(int first, int end, int size, int port, const std::string& token) {
  const auto limit = distx::Deadline(std::chrono::seconds(200)).end();
  std::vector<test::tcp::BufferedSocket> sockets;
  for (int rank = first; rank < end; ++rank) {
    auto socket = test::stranger(port);
    if (test::tcp::prove_as_rank(socket, token, limit)) return false;
    socket.append(control::Frame{{.kind = control::FrameKind::hello, .rank = rank, .size = size},
                                 distx::detail::posix::this_process().text()});
    if (socket.exchange(0, limit) != 0) return false;
    sockets.push_back(std::move(socket));
  }
  for (int rank = first; rank < end; ++rank) {
    const auto bytes = control::text_of({{.kind = control::FrameKind::regrouped,
                                          .rank = rank,
                                          .size = size,
                                          .local_rank = rank,
                                          .local_size = size,
                                          .identity = 1}});
    auto& socket = sockets[static_cast<std::size_t>(rank - first)];
    if (socket.exchange(bytes.size(), limit) != 0 || socket.take(bytes.size()) != bytes) return false;
  }
  return true;
}

TEST_CASE("ten thousand ranks join over TCP, each of which costs rank 0 a descriptor and less than 2 KiB" *
          test::Needs("a limit of 10,100 open files or more", [] { return may_open(10100); })) {
  constexpr int many = 10000, each = 200;
  const int port = test::free_port();
  const long before = resident();
  const auto began = std::chrono::steady_clock::now();
  const pid_t others = ::fork();  // it has its own limit of open files
  if (others == 0) {
    std::atomic<int> wrong = 0;
    try {
      std::vector<std::jthread> threads;
      for (int first = 1; first < many; first += each)
        threads.emplace_back([&, first] {
          try {
            wrong += join_as(first, std::min(first + each, many), many, port, "secret") ? 0 : 1;
          } catch (...) {
            ++wrong;
          }
        });
    } catch (...) {
      ++wrong;
    }
    ::_exit(wrong);
  }
  {
    distx::TcpConnector connector("127.0.0.1", port, 0, many,
                                  {.deadline = std::chrono::seconds(200), .token = "secret"});
    const std::chrono::duration<double> joined = std::chrono::steady_clock::now() - began;
    CHECK(connector.local_size() == many);
    const long held = resident() - before;
    CHECK(held < 2 * many);
    const std::filesystem::directory_iterator open("/proc/self/fd");
    CHECK(std::distance(open, {}) < many + 50);
    std::cout << many << " ranks joined in " << joined.count() << " s; rank 0 holds " << held << " KiB\n";
  }
  int status = -1;
  CHECK(::waitpid(others, &status, 0) == others);
  CHECK(status == 0);
}

}  // namespace
