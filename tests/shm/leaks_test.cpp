// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Ten thousand communicators, and ranks killed at random times: no resources leak, and no rank waits indefinitely.
#include <doctest/doctest.h>

#include <random>

#include "shm/forked.hpp"
#include "shm/system.hpp"

namespace {

using namespace std::chrono_literals;
using Comm = distx::ShmCommunicator;

TEST_CASE("ten thousand communicators leave open files, /dev/shm, mappings and memory flat") {
  const auto named = test::shared_names();
  const auto began = std::chrono::steady_clock::now();
  const auto ended = test::forked(2, [](test::ForkedConnector& connector, test::Board&) {
    const auto rounds = [&](int count) {
      for (int i = 0; i < count; ++i) {
        Comm comm(connector, 1min);
        float value = 1;
        distx::all_reduce(comm, value, distx::sum);
        if (value != 2) throw std::logic_error("wrong sum");
      }
      connector.barrier();
    };
    rounds(100);
    const auto files = test::open_files(), mappings = test::mappings(), memory = test::memory_kib("VmRSS");
    rounds(10000);
    if (test::open_files() != files) return 1;
    if (test::mappings() > mappings + 2) return 2;  // the heap may have grown
    if (test::memory_kib("VmRSS") > memory + 1024) return 3;
    return 0;
  });
  const std::chrono::duration<double, std::micro> lasted = std::chrono::steady_clock::now() - began;
  CHECK(ended == std::vector<int>{0, 0});
  const double each = lasted.count() / 10100;
  MESSAGE(each << " us for each communicator");
  CHECK(test::shared_names() == named);
}

/// Repeats everything during which a rank can be killed; returns when `until()`.
template <class Until>
void work(test::ForkedConnector& connector, const Until& until) {
  while (!until()) {
    Comm comm(connector, 20s);
    const int right = (comm.rank() + 1) % comm.size(), left = (comm.rank() + comm.size() - 1) % comm.size();
    for (int call = 0; call < 3; ++call) {
      auto memory = comm.allocate<float>(30000);
      std::vector<float> own(70000, 1);
      distx::all_reduce(comm, memory, distx::sum);
      auto pending = distx::start_all_reduce(comm, own, distx::sum);
      distx::send_receive(comm, std::vector<float>(2000), right, memory.span().first(2000), left);
      pending.wait();
      std::vector<float> long_message(70000);
      distx::send_receive(comm, own, right, long_message, left);  // directly from process to process
      const auto half = comm.split(comm.rank() % 2, 0);
    }
  }
}

TEST_CASE("a rank that is killed at any time leaks nothing, and the others throw a typed error") {
  const auto named = test::shared_names();
  const auto files = test::open_files();
  std::mt19937 random(20240229);
  // RankFailure; RevokedError; killed before the communicator existed; killed before its memory was found.
  std::array<int, 4> told{};
  const auto end = std::chrono::steady_clock::now() + 15s;
  int tries = 0;
  for (; tries < 300 && std::chrono::steady_clock::now() < end; ++tries) {
    CAPTURE(tries);
    const int victim = static_cast<int>(random() % 3);
    // Some ranks die before the communicator is made, most during the first or the second round.
    const auto delay = std::chrono::microseconds(random() % 12000);
    const auto ended = test::forked(3, [&](test::ForkedConnector& connector, test::Board& board) {
      // The connector gives up, too, if a rank will not join.
      std::jthread killer;
      connector.stop_when(board.steps);
      if (connector.rank() == victim)
        killer = std::jthread([&board, delay] {
          const auto at = std::chrono::steady_clock::now() + delay;
          while (std::chrono::steady_clock::now() < at) std::this_thread::yield();
          board.steps = 1;
          ::raise(SIGKILL);
        });
      try {
        work(connector, [] { return false; });
      } catch (const distx::RankFailure&) {
        return 1;
      } catch (const distx::RevokedError&) {
        return 2;
      } catch (const distx::ConnectError&) {
        return 3;
      } catch (const distx::TimeoutError&) {
        return 3;
      } catch (const distx::MemoryError&) {
        return 4;
      }
      return 9;
    });
    for (int rank = 0; rank < 3; ++rank) {
      CAPTURE(rank);
      const int how = ended[static_cast<std::size_t>(rank)];
      if (rank == victim) {
        REQUIRE(how == 1000 + SIGKILL);
      } else {
        REQUIRE(how >= 1);
        REQUIRE(how <= 4);
        ++told[static_cast<std::size_t>(how - 1)];
      }
    }
  }
  MESSAGE(tries << " kills: " << told[0] << " RankFailure, " << told[1] << " RevokedError, " << told[2]
                << " before there was a communicator, " << told[3] << " MemoryError");
  CHECK(tries >= 100);
  CHECK(told[0] > 0);
  CHECK(test::shared_names() == named);
  CHECK(test::open_files() == files);
}

}  // namespace
