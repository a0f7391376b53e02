// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Large data of the user that ranks copy directly from each other's processes.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <csignal>
#include <fstream>
#include <numeric>

#include "comm/outcomes.hpp"
#include "distx/shm/detail/other_process.hpp"
#include "shm/forked.hpp"
#include "shm/pages.hpp"

namespace {

using namespace std::chrono_literals;
using Comm = distx::ShmCommunicator;
using Values = std::vector<int>;

int value(int rank, std::size_t i, int round) { return rank * 7919 + static_cast<int>(i) * 31 + round; }

Values made(int rank, std::size_t count, int round) {
  Values values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value(rank, i, round);
  return values;
}
bool holds(const int* begin, std::size_t count, int rank, std::size_t from, int round) {
  for (std::size_t i = 0; i < count; ++i)
    if (begin[i] != value(rank, from + i, round)) return false;
  return true;
}
std::size_t block(const std::vector<std::size_t>& counts, int rank) { return counts[static_cast<std::size_t>(rank)]; }
std::size_t offset(const std::vector<std::size_t>& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0});
}

/// Makes each call that moves data, with blocks of these sizes; returns the first that moves it wrongly, or 0.
int moved_wrongly(Comm& comm, const std::vector<std::size_t>& counts, int round) {
  const int me = comm.rank(), root = round % comm.size();
  const std::size_t mine = block(counts, me), whole = offset(counts, comm.size());
  const auto all_hold = [&](const Values& values) {
    for (int rank = 0; rank < comm.size(); ++rank)
      if (!holds(values.data() + offset(counts, rank), block(counts, rank), rank, 0, round)) return false;
    return true;
  };
  Values everything(whole, -1);
  distx::all_gather(comm, made(me, mine, round), everything, counts);
  if (!all_hold(everything)) return 1;

  Values gathered(me == root ? whole : 0, -1);
  distx::gather(comm, made(me, mine, round), gathered, root, counts);
  if (me == root && !all_hold(gathered)) return 2;

  Values copied = me == root ? made(root, whole, round) : Values(whole, -1);
  distx::broadcast(comm, copied, root);
  if (!holds(copied.data(), whole, root, 0, round)) return 3;

  Values part(mine, -1);
  distx::scatter(comm, me == root ? made(root, whole, round) : Values{}, part, root, counts);
  if (!holds(part.data(), mine, root, offset(counts, me), round)) return 4;

  // Rank r sends a block of size counts[r] to each rank.
  const auto ranks = static_cast<std::size_t>(comm.size());
  Values received(whole, -1);
  const Values sent = made(me, mine * ranks, round);
  distx::all_to_all(comm, sent, received, std::vector<std::size_t>(ranks, mine), counts);
  for (int rank = 0; rank < comm.size(); ++rank)
    if (!holds(received.data() + offset(counts, rank), block(counts, rank), rank,
               static_cast<std::size_t>(me) * block(counts, rank), round))
      return 5;
  return 0;
}

/// Returns the KiB in memory of the segments that this process maps.
std::size_t segments_kib() {
  std::ifstream maps("/proc/self/smaps");
  std::size_t sum = 0;
  bool counts = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:distx") != std::string::npos)
      counts = true;
    else if (counts && line.starts_with("Rss:"))
      sum += std::stoul(line.substr(4)), counts = false;
  }
  return sum;
}

TEST_CASE("blocks of all sizes arrive, read from other processes or not") {
  const std::vector<std::vector<std::size_t>> all = {
      {40000, 40000, 40000},  // the first call is staged, those after it are read
      {1, 40000, 40000},      // rank 0's is in its slot
      {0, 1, 70000},         {5000, 40000, 600}, {2000, 2000, 2000}, {4096, 4095, 4097}, {300000, 3, 0},
  };
  for (const int ranks : {2, 3})
    for (const std::size_t first : {0U, 1U, 2U, 3U}) {
      CAPTURE(ranks);
      CAPTURE(first);
      const auto ended = test::forked(ranks, [&](test::ForkedConnector& connector, test::Board&) {
        Comm comm(connector, 60s);
        for (std::size_t i = 0; i < 2 * all.size(); ++i) {
          auto counts = all[(first + i) % all.size()];
          counts.resize(static_cast<std::size_t>(ranks));
          if (const int wrong = moved_wrongly(comm, counts, static_cast<int>(i)); wrong != 0)
            return static_cast<int>(10 * i) + wrong;
        }
        return 0;
      });
      CHECK(ended == std::vector<int>(static_cast<std::size_t>(ranks), 0));
    }
}

/// Exchanges blocks of `count` ints in place in a rank's memory; returns whether all arrive.
bool swaps(Comm& comm, distx::Span<int> memory, std::size_t count, int round) {
  const auto blocks = static_cast<std::size_t>(comm.size());
  const auto values = memory.first(count * blocks);
  std::ranges::copy(made(comm.rank(), values.size(), round), values.begin());
  distx::all_to_all(comm, values, values);
  for (int from = 0; from < comm.size(); ++from)
    if (!holds(values.data() + static_cast<std::size_t>(from) * count, count, from,
               static_cast<std::size_t>(comm.rank()) * count, round))
      return false;
  return true;
}

/// Returns the number of the exchange that fails, or 0. Rank `odd` is the only one that uses the other kind of memory.
int swapped_wrongly(Comm& comm, int odd, bool most_in_user_memory) {
  constexpr std::size_t most = 300000;
  auto shared = comm.allocate<int>(most * static_cast<std::size_t>(comm.size()));
  Values own(shared.size());
  const bool in_user_memory = most_in_user_memory != (comm.rank() == odd);
  const distx::Span<int> memory = in_user_memory ? distx::Span<int>(own) : shared.span();
  int exchange = 0;
  for (const std::size_t count : {std::size_t{1}, std::size_t{600}, std::size_t{40000}, most})
    for (int round = 0; round < 3; ++round)
      if (++exchange; !swaps(comm, memory, count, exchange)) return exchange;
  return 0;
}

TEST_CASE("an all-to-all in place exchanges blocks of all sizes in user memory, communicator memory and both") {
  for (const int ranks : {2, 3})
    for (const int odd : {-1, 0, 1})
      for (const bool user : {false, true}) {
        CAPTURE(ranks);
        CAPTURE(odd);
        CAPTURE(user);
        const auto ended = test::forked(ranks, [&](test::ForkedConnector& connector, test::Board&) {
          Comm comm(connector, 60s);
          return swapped_wrongly(comm, odd, user);
        });
        CHECK(ended == std::vector<int>(static_cast<std::size_t>(ranks), 0));
        distx::spawn(distx::threads(ranks, 60s), [&](distx::ThreadConnector& connector) {
          Comm comm(connector, 60s);
          CHECK(swapped_wrongly(comm, odd, user) == 0);
        });
      }
}

TEST_CASE("ranks that have left a small gather do not yet read, and all others then stage") {
  const auto ended = test::forked(3, [&](test::ForkedConnector& connector, test::Board&) {
    Comm comm(connector, 60s);
    const std::vector<std::size_t> counts{40000, 1, 40000};
    for (int round = 0; round < 4; ++round) {
      Values gathered(comm.rank() == 0 ? offset(counts, 3) : 0, -1);
      distx::gather(comm, made(comm.rank(), block(counts, comm.rank()), round), gathered, 0, counts);
      for (int rank = 0; comm.rank() == 0 && rank < 3; ++rank)
        if (!holds(gathered.data() + offset(counts, rank), block(counts, rank), rank, 0, round)) return 20 + round;
    }
    for (int round = 0; round < 3; ++round)
      if (const int wrong = moved_wrongly(comm, {40000, 40000, 40000}, round); wrong != 0) return 10 * round + wrong;
    return 0;
  });
  CHECK(ended == std::vector<int>{0, 0, 0});
}

TEST_CASE("large data of the user passes through no shared memory, but on two ranks where system calls copy slowly") {
  const bool quickly = distx::detail::shm::other_process::copies_quickly();  // the forked ranks know it
  for (const int ranks : {2, 3}) {
    CAPTURE(ranks);
    const auto ended = test::forked(ranks, [&](test::ForkedConnector& connector, test::Board&) {
      Comm comm(connector, 60s);
      Values all(static_cast<std::size_t>(3000 * ranks));
      distx::all_gather(comm, made(comm.rank(), 3000, 0), all);  // staged: the ranks try to read
      const std::size_t before = segments_kib();
      const std::vector<std::size_t> counts(static_cast<std::size_t>(ranks), 300000);
      if (const int wrong = moved_wrongly(comm, counts, 1); wrong != 0) return wrong;
      return segments_kib() < before + (ranks == 2 && !quickly ? 300 : 32) ? 0 : 9;
    });
    CHECK(ended == std::vector<int>(static_cast<std::size_t>(ranks), 0));
  }
}

TEST_CASE("the only rank moves its data without shared memory, from the first call on") {
  const auto ended = test::forked(1, [&](test::ForkedConnector& connector, test::Board&) {
    Comm comm(connector, 60s);
    const std::size_t before = segments_kib();
    for (int round = 0; round < 2; ++round)
      if (const int wrong = moved_wrongly(comm, {300000}, round); wrong != 0) return wrong;
    std::vector<float> averages(100000, 3.0f);
    distx::all_reduce(comm, averages, distx::average);
    if (averages != std::vector<float>(averages.size(), 3.0f)) return 6;
    return segments_kib() == before ? 0 : 9;
  });
  CHECK(ended == std::vector<int>{0});
}

TEST_CASE("data that cannot be read ends the call on every rank") {
  const auto ended = test::forked(3, [&](test::ForkedConnector& connector, test::Board&) {
    Comm comm(connector, 60s);
    const test::Pages<int> pages(65536);
    const auto memory = pages.span();
    Values all(3 * memory.size());
    distx::all_gather(comm, memory, all);
    if (comm.rank() == 1) ::mprotect(memory.data(), memory.size_bytes(), PROT_NONE);
    const auto outcome = test::outcome_of([&] { distx::gather(comm, memory, all, 0); });
    if (comm.rank() == 1) ::mprotect(memory.data(), memory.size_bytes(), PROT_READ | PROT_WRITE);
    // Rank 0 reads a part of the data, rank 1 writes the other.
    if (comm.rank() == 0)
      return outcome.says("cannot read the memory of rank 1: Bad address") ||
                     outcome.says("cannot copy to the memory of rank 0: Bad address")
                 ? 0
                 : 1;
    return outcome.type == "RevokedError" || outcome.says("cannot copy to the memory of rank 0") ? 0 : 2;
  });
  CHECK(ended == std::vector<int>{0, 0, 0});
}

TEST_CASE("a rank that is killed while it is awaited for large data ends the others' calls") {
  const auto ended = test::forked(3, [&](test::ForkedConnector& connector, test::Board&) {
    Comm comm(connector, 60s);
    for (int round = 0;; ++round) {
      const auto outcome = test::outcome_of([&] {
        if (const int wrong = moved_wrongly(comm, {400000, 400000, 400000}, round); wrong != 0)
          throw std::runtime_error("moved wrongly");
      });
      if (comm.rank() == 2 && round == 3) ::raise(SIGKILL);
      if (outcome.type != "done") return outcome.type == "RankFailure" || outcome.type == "RevokedError" ? 0 : 1;
    }
  });
  CHECK(ended == std::vector<int>{0, 0, 1000 + SIGKILL});
}

}  // namespace
