// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Large data of the user that a rank writes to another one's process, as its part of what the other rank reads.
#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <csignal>
#include <thread>

#include "comm/outcomes.hpp"
#include "shm/forked.hpp"

namespace {

using namespace std::chrono_literals;
using Comm = distx::ShmCommunicator;

enum class Stops { never, before, after };
std::atomic<Stops> next_stop{Stops::never};  // where this process stops itself, once
std::atomic<std::size_t> bytes_written{0};   // by this process to others

}  // namespace

// In place of the C library's, so that a test can count the writes and stop a rank next to one.
extern "C" ssize_t process_vm_writev(pid_t process, const iovec* here, unsigned long parts, const iovec* there,
                                     unsigned long parts_there, unsigned long flags) noexcept {
  const Stops where = next_stop.exchange(Stops::never);
  if (where == Stops::before) ::raise(SIGSTOP);
  const auto moved = ::syscall(SYS_process_vm_writev, process, here, parts, there, parts_there, flags);
  if (moved > 0) bytes_written += static_cast<std::size_t>(moved);
  if (where == Stops::after) ::raise(SIGSTOP);
  return moved;
}

namespace {

constexpr std::size_t floats = 1 << 20;

/// Makes a rooted call in user memory of `floats` floats for each of `ranks`; returns whether the result is right.
bool moves_in_user_memory(Comm& comm, std::string_view name, int root) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const auto value = [](std::size_t rank) { return static_cast<float>(rank + 1); };
  const auto me = static_cast<std::size_t>(comm.rank());
  std::vector<float> all(floats * ranks, 0), part(floats, value(me));
  const auto all_hold = [&] {
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i] != value(i / floats)) return false;
    return true;
  };
  const auto fill_all = [&] {
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = value(i / floats);
  };
  if (name == "gather") {
    distx::gather(comm, part, all, root);
    return comm.rank() != root || all_hold();
  }
  if (comm.rank() == root) fill_all();
  if (name == "broadcast") {
    distx::broadcast(comm, all, root);
    return all_hold();
  }
  part.assign(floats, 0);
  distx::scatter(comm, all, part, root);
  return std::ranges::all_of(part, [&](float each) { return each == value(me); });
}

TEST_CASE("of what moves between the root and another rank in user memory, N ranks' root copies an N-th") {
  for (const int ranks : {2, 3, 4})
    for (const std::string_view name : {"broadcast", "gather", "scatter"}) {
      CAPTURE(ranks);
      CAPTURE(name);
      const auto ended = test::forked(ranks, [&](test::ForkedConnector& connector, test::Board&) {
        Comm comm(connector, 60s);
        for (int root = 0; root < ranks; ++root) {
          if (!moves_in_user_memory(comm, name, root)) return 1;  // the first call is staged
          if (root == 0) continue;
          bytes_written = 0;
          if (!moves_in_user_memory(comm, name, root)) return 2;
          const std::size_t one = floats * sizeof(float) * static_cast<std::size_t>(name == "broadcast" ? ranks : 1);
          const auto others = static_cast<std::size_t>(ranks - 1), all = others + 1;
          const bool writes = name == "gather" ? comm.rank() != root : comm.rank() == root;
          // The root's part of the gather is what it reads; part sizes are rounded to lines, and marks are added.
          const std::size_t expected = !writes ? 0 : name == "gather" ? one * others / all : others * (one / all);
          const std::size_t margin = writes ? 256 * all : 0;
          if (bytes_written + margin < expected || bytes_written > expected + margin) return 3;
        }
        return 0;
      });
      CHECK(ended == std::vector<int>(static_cast<std::size_t>(ranks), 0));
    }
}

/// Rank 0 stops next to its write to memory of rank 1, which gives up meanwhile; `body` is what rank 1 does while
/// its call lasts, on a thread, with the number of rank 0's process and whether the call has returned.
std::vector<int> with_a_stop(Stops where, const std::function<int(int, const std::atomic<bool>&)>& meanwhile) {
  return test::forked(2, [&](test::ForkedConnector& connector, test::Board& board) {
    Comm comm(connector, 1s);
    std::vector<float> memory(floats, 1);
    distx::broadcast(comm, memory, 0);
    if (comm.rank() == 0) {
      board.steps = static_cast<int>(::getpid());
      connector.barrier();
      next_stop = where;
      (void)test::outcome_of([&] { distx::broadcast(comm, memory, 0); });  // rank 1 has arrived before it gave up
      connector.barrier();
      return test::outcome_of([&] { distx::barrier(comm); }).type == "RevokedError" ? 0 : 1;
    }
    connector.barrier();
    std::atomic<bool> has_returned{false};
    int wrong = 0;
    std::thread other([&] { wrong = meanwhile(board.steps, has_returned); });
    const auto outcome = test::outcome_of([&] { distx::broadcast(comm, memory, 0); });
    has_returned = true;
    std::ranges::fill(memory, 5.0f);
    other.join();
    connector.barrier();
    if (outcome.type != "TimeoutError") return 2;
    return std::ranges::all_of(memory, [](float each) { return each == 5; }) ? wrong : 3;
  });
}

bool happens_within(std::chrono::milliseconds limit, const std::function<bool()>& ready) {
  return distx::detail::wait_until(limit, ready, [] { return false; }) == distx::detail::WaitEnd::ready;
}

TEST_CASE("a rank that gives up keeps its memory until a rank that was stopped before a write to it has written") {
  const auto ended = with_a_stop(Stops::before, [](int process, const std::atomic<bool>& has_returned) {
    const bool early = happens_within(3s, [&] { return has_returned.load(); });
    ::kill(process, SIGCONT);
    return early ? 10 : 0;
  });
  CHECK(ended == std::vector<int>{0, 0});
}

TEST_CASE("a rank that was stopped after a write does not hold the rank to which it has written") {
  const auto ended = with_a_stop(Stops::after, [](int process, const std::atomic<bool>& has_returned) {
    const bool in_time = happens_within(30s, [&] { return has_returned.load(); });
    ::kill(process, SIGCONT);
    return in_time ? 0 : 11;
  });
  CHECK(ended == std::vector<int>{0, 0});
}

}  // namespace
