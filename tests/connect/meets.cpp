// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A rank started by tools/ranks, tools/run or another launcher: runs the case that its argument names; the status is 0
// if all is as expected.
#include <unistd.h>
#include <distx/distx.hpp>
#include <distx/file.hpp>
#include <distx/tcp.hpp>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>

namespace {

using std::chrono::seconds;

void expect(bool right, const std::string& what) {
  if (!right) throw std::runtime_error(what);
}

void laws(distx::AnyConnector& connector) {
  const int rank = connector.rank(), size = connector.size();
  expect(connector.local_rank() == rank && connector.local_size() == size, "the ranks of this host");
  for (int round = 0; round < 20; ++round) {
    const auto ranks = distx::all_gather_values(connector, rank + round);
    for (int r = 0; r < size; ++r) expect(ranks[static_cast<std::size_t>(r)] == r + round, "all_gather");
    expect(distx::broadcast_value(connector, 10 * rank, round % size) == 10 * (round % size), "broadcast");
    connector.barrier();
  }
  const auto channel = connector.failure_channel();
  if (rank == size - 1) channel->publish(1, "from the last rank");
  distx::detail::wait_until(seconds(30), [&] { return channel->poll(1).has_value(); }, [] { return false; });
  expect(channel->poll(1) == "from the last rank", "a notification");
  connector.barrier();
}

void in_threads(distx::AnyConnector& connector) {
  distx::spawn(distx::threads(2) * connector, [](auto& product) {
    const auto ranks = distx::all_gather_values(product, product.rank());
    for (std::size_t r = 0; r < ranks.size(); ++r) expect(ranks[r] == static_cast<int>(r), "all_gather of threads");
    const auto channel = product.failure_channel();
    if (product.rank() == product.size() - 1) channel->publish(2, "from a thread");
    distx::detail::wait_until(seconds(30), [&] { return channel->poll(2).has_value(); }, [] { return false; });
    expect(channel->poll(2) == "from a thread", "a notification among threads");
    product.barrier();
  });
}

/// The last rank is killed; the others are notified at once, in a call and by the channel.
void killed(distx::AnyConnector& connector) {
  const int last = connector.size() - 1;
  connector.barrier();
  if (connector.rank() == last) std::raise(SIGKILL);
  const auto began = std::chrono::steady_clock::now();
  try {
    connector.barrier();
    throw std::runtime_error("the barrier was passed without the last rank");
  } catch (const distx::RankFailure& failure) {
    expect(failure.failed_rank() == last, failure.what());
    expect(std::string(failure.what()).find("exited unexpectedly") != std::string::npos, failure.what());
    if (connector.rank() == 0) std::puts(failure.what());
  }
  expect(connector.failure_channel()->poll(5).value_or("").find("exited unexpectedly") != std::string::npos,
         "the channel");
  expect(std::chrono::steady_clock::now() - began < seconds(20), "this took as long as a deadline");
}

/// Rank 0, which serves the others over TCP, is killed.
void killed_first(distx::AnyConnector& connector) {
  connector.barrier();
  if (connector.rank() == 0) std::raise(SIGKILL);
  try {
    connector.barrier();
    throw std::runtime_error("the barrier was passed without rank 0");
  } catch (const distx::RankFailure& failure) {
    expect(failure.failed_rank() == 0, failure.what());
    std::puts(failure.what());
  }
  expect(connector.failure_channel()->poll(5).value_or("").find("exited unexpectedly") != std::string::npos,
         "the channel");
}

/// Rank 0, which serves the others over TCP, is stopped: the others' deadlines are their own.
void stopped(distx::AnyConnector& connector) {
  const int root = distx::broadcast_value(connector, static_cast<int>(::getpid()), 0);
  if (connector.rank() == 0) std::raise(SIGSTOP);
  try {
    connector.barrier();
    throw std::runtime_error("the barrier was passed without rank 0");
  } catch (const distx::TimeoutError& error) {
    std::puts(error.what());
  }
  ::kill(root, SIGKILL);
}

/// Rank 0 prints the addresses at which its process listens: those whose sockets it has open.
void listening(distx::AnyConnector& connector) {
  connector.barrier();
  if (connector.rank() == 0) {
    std::set<std::string> sockets;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
      sockets.insert(std::filesystem::read_symlink(entry.path(), error).string());
    for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
      std::ifstream file(table);
      std::string line;
      std::getline(file, line);
      while (std::getline(file, line)) {
        std::istringstream fields(line);
        std::string number, local, remote, state, inode;
        fields >> number >> local >> remote >> state;
        for (int field = 0; field < 6; ++field) fields >> inode;
        if (state == "0A" && sockets.contains("socket:[" + inode + "]")) std::puts(local.c_str());
      }
    }
  }
  connector.barrier();
}

/// A rank that exits without destroying its connector counts as failed.
void exits(distx::AnyConnector& connector) {
  connector.barrier();
  if (connector.rank() == connector.size() - 1) std::_Exit(0);
  try {
    connector.barrier();
  } catch (const distx::RankFailure&) {
    return;
  }
  throw std::runtime_error("the barrier was passed without the last rank");
}

void throws(distx::AnyConnector& connector) {
  connector.barrier();
  if (connector.rank() == connector.size() - 1) throw std::runtime_error("as it should");
  try {
    connector.barrier();
  } catch (const distx::RevokedError& error) {
    expect(std::string(error.what()).find("destroyed its connector while unwinding") != std::string::npos,
           error.what());
    return;
  }
  throw std::runtime_error("the barrier was passed without the last rank");
}

int run(const std::string& what, int argc, char** argv) {
  try {
    distx::AnyConnector connector = distx::connect(argc, argv);
    const std::string expected = argc > 2 ? argv[2] : "";
    expect(expected != "file" || connector.target<distx::FileConnector>() != nullptr, "it is not a FileConnector");
    expect(expected != "tcp" || connector.target<distx::TcpConnector>() != nullptr, "it is not a TcpConnector");
    if (what == "laws")
      laws(connector);
    else if (what == "threads")
      in_threads(connector);
    else if (what == "killed")
      killed(connector);
    else if (what == "killed first")
      killed_first(connector);
    else if (what == "stopped")
      stopped(connector);
    else if (what == "listening")
      listening(connector);
    else if (what == "exits")
      exits(connector);
    else if (what == "throws")
      throws(connector);
    else
      expect(what == "meets", "there is no case '" + what + "'");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) { return run(argc > 1 ? argv[1] : "", argc, argv); }
