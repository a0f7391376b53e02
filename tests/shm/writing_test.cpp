// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Large data of the user that a rank writes to another one's process, as its part of what the other rank reads.
#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <csignal>
#include <thread>

#include "comm/outcomes.hpp"
#include "distx/posix/process.hpp"
#include "distx/shm/detail/other_process.hpp"
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

/// Makes a rooted call of `floats` floats for each of `ranks`, in communicator memory if `shared`, otherwise in user
/// memory; returns whether the result is right.
bool moves_whole(Comm& comm, std::string_view name, int root, bool shared) {
  const auto ranks = static_cast<std::size_t>(comm.size()), me = static_cast<std::size_t>(comm.rank());
  const auto value = [](std::size_t rank) { return static_cast<float>(rank + 1); };
  auto memory = comm.allocate<float>(floats * (ranks + 1));
  std::vector<float> own(shared ? 0 : memory.size());
  const distx::Span<float> both = shared ? memory.span() : distx::Span<float>(own);
  const auto all = both.first(floats * ranks), part = both.subspan(floats * ranks, floats);
  std::ranges::fill(all, 0.0f);
  std::ranges::fill(part, name == "gather" ? value(me) : 0.0f);
  const auto all_hold = [&] {
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i] != value(i / floats)) return false;
    return true;
  };
  if (name == "gather") {
    distx::gather(comm, part, all, root);
    return comm.rank() != root || all_hold();
  }
  if (comm.rank() == root)
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = value(i / floats);
  if (name == "broadcast") {
    distx::broadcast(comm, all, root);
    return all_hold();
  }
  distx::scatter(comm, all, part, root);
  return std::ranges::all_of(part, [&](float each) { return each == value(me); });
}

TEST_CASE(
    "the root of a call copies an N-th of what moves between it and each other rank, where ranks read each other") {
  const bool quickly = distx::detail::shm::other_process::copies_quickly();  // the forked ranks know it
  for (const int ranks : {2, 3, 4})
    for (const std::string_view name : {"broadcast", "gather", "scatter"}) {
      CAPTURE(ranks);
      CAPTURE(name);
      const auto ended = test::forked(ranks, [&](test::ForkedConnector& connector, test::Board&) {
        Comm comm(connector, 60s);
        if (!moves_whole(comm, name, 0, false)) return 1;  // the first call is staged
        for (int root = 0; root < ranks; ++root) {
          bytes_written = 0;
          if (!moves_whole(comm, name, root, false)) return 2;
          const std::size_t one = floats * sizeof(float) * static_cast<std::size_t>(name == "broadcast" ? ranks : 1);
          const auto others = static_cast<std::size_t>(ranks - 1), all = others + 1;
          const bool writes = (ranks > 2 || quickly) && (name == "gather" ? comm.rank() != root : comm.rank() == root);
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

TEST_CASE("ranks that use communicator memory and ranks that use their own copy from and to each other") {
  for (const int ranks : {2, 3})
    for (const std::string_view name : {"broadcast", "gather", "scatter"})
      for (unsigned shared = 1; shared < 1U << ranks; ++shared) {
        CAPTURE(ranks);
        CAPTURE(name);
        CAPTURE(shared);
        const auto ended = test::forked(ranks, [&](test::ForkedConnector& connector, test::Board&) {
          Comm comm(connector, 60s);
          if (!moves_whole(comm, name, 0, false)) return 1;
          for (int root = 0; root < ranks; ++root)
            if (!moves_whole(comm, name, root, (shared >> comm.rank() & 1U) != 0)) return 2 + root;
          return 0;
        });
        CHECK(ended == std::vector<int>(static_cast<std::size_t>(ranks), 0));
      }
}

bool happens_within(std::chrono::milliseconds limit, const std::function<bool()>& ready) {
  return distx::detail::wait_until(limit, ready, [] { return false; }) == distx::detail::WaitEnd::ready;
}

/// Rank 0 stops next to its write to memory of rank 1, which gives up meanwhile. On rank 1 a thread waits until rank 0
/// has stopped, then for `limit` until rank 1's call has returned, and then lets rank 0 continue. Returns 10 for rank 1
/// if its call has not returned by then, or 0.
std::vector<int> with_a_stop(Stops where, bool asynchronous, std::chrono::milliseconds limit) {
  return test::forked(3, [&](test::ForkedConnector& connector, test::Board& board) {
    Comm comm(connector, 4s);
    std::vector<float> memory(floats, 1);
    const auto broadcast = [&] {
      if (asynchronous)
        distx::start_broadcast(comm, memory, 0).wait();
      else
        distx::broadcast(comm, memory, 0);
    };
    broadcast();
    if (comm.rank() == 0) {
      board.steps = static_cast<int>(::getpid());
      connector.barrier();
      next_stop = where;
      (void)test::outcome_of(broadcast);  // rank 1 has arrived before it gave up
      connector.barrier();
      return test::outcome_of([&] { distx::barrier(comm); }).type == "RevokedError" ? 0 : 1;
    }
    connector.barrier();
    if (comm.rank() == 2) {
      const auto outcome = test::outcome_of(broadcast);
      connector.barrier();
      return outcome.type == "TimeoutError" || outcome.type == "RevokedError" ? 0 : 4;
    }
    std::atomic<bool> has_returned{false};
    bool in_time = false, has_stopped = false;
    std::thread other([&] {
      has_stopped = happens_within(30s, [&] { return distx::detail::posix::process_state(board.steps).state == 'T'; });
      in_time = happens_within(limit, [&] { return has_returned.load(); });
      ::kill(board.steps, SIGCONT);
    });
    const auto outcome = test::outcome_of(broadcast);
    has_returned = true;
    std::ranges::fill(memory, 5.0f);
    other.join();
    connector.barrier();
    if (!has_stopped || (outcome.type != "TimeoutError" && outcome.type != "RevokedError")) return 2;
    if (!std::ranges::all_of(memory, [](float each) { return each == 5; })) return 3;
    return in_time ? 0 : 10;
  });
}

TEST_CASE("a rank that gives up keeps its memory until a rank that was stopped before a write to it has written") {
  for (const bool asynchronous : {false, true}) {
    CAPTURE(asynchronous);
    CHECK(with_a_stop(Stops::before, asynchronous, 6s) == std::vector<int>{0, 10, 0});
  }
}

TEST_CASE("a rank that was stopped after a write does not hold the rank to which it has written") {
  for (const bool asynchronous : {false, true}) {
    CAPTURE(asynchronous);
    CHECK(with_a_stop(Stops::after, asynchronous, 30s) == std::vector<int>{0, 0, 0});
  }
}

}  // namespace
