// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Two levels that fail as one: errors reach every rank on every host, and no rank keeps waiting.
#include "distx/comm/hierarchical.hpp"

#include <doctest/doctest.h>

#include "comm/made_up_machines.hpp"
#include "comm/outcomes.hpp"

namespace {

using namespace std::chrono_literals;
using Threads = distx::ThreadCommunicator;
using TwoLevels = distx::Hierarchical<Threads, Threads>;
using test::Outcome;
using test::outcome_of;

/// Runs `f(comm)` on thread ranks of these hosts, and returns the outcome of each.
template <class F>
std::vector<Outcome> outcomes(std::string_view machines, F f, distx::Timeout deadline = 1min) {
  std::vector<Outcome> all(machines.size());
  distx::spawn(distx::threads(static_cast<int>(machines.size()), 1min), [&](distx::ThreadConnector& connector) {
    test::MadeUpMachines made_up(connector, machines);
    auto& mine = all[static_cast<std::size_t>(connector.rank())];
    std::optional<TwoLevels> comm;
    mine = outcome_of([&] {
      comm.emplace(made_up, deadline);
      f(*comm);
    });
    connector.barrier();
  });
  return all;
}

/// Checks the messages if rank 2 makes a different call: it names rank 0's call, the other ranks name rank 2's.
void check_odd_one(std::string_view machines, void (*call)(TwoLevels&), const std::string& of_rank_2,
                   const std::string& of_rank_0) {
  const auto all = outcomes(machines, call);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    CAPTURE(rank);
    CAPTURE(all[rank].words);
    CHECK(all[rank].type == "MismatchError");
    CHECK(all[rank].says(rank == 2 ? of_rank_0 : of_rank_2));
    CHECK(all[rank].says("on rank " + std::to_string(rank) + " of " + std::to_string(all.size()) +
                         " (threads+threads): "));
  }
}

TEST_CASE("different calls are a mismatch on every rank of every host") {
  for (const std::string_view machines : {"0011", "0112223", "00122"}) {
    CAPTURE(machines);
    const auto length = [](TwoLevels& comm) {
      std::vector<float> values(comm.rank() == 2 ? 8 : 10);
      distx::all_reduce(comm, values, distx::sum);
    };
    check_odd_one(machines, length, "rank 2 passes 8 elements, this rank 10", "rank 0 passes 10 elements, this rank 8");
    const auto op = [](TwoLevels& comm) {
      float value = 1;
      if (comm.rank() == 2)
        distx::start_all_reduce(comm, value, distx::max).wait();
      else
        distx::start_all_reduce(comm, value, distx::sum).wait();
    };
    check_odd_one(machines, op, "rank 2 reduces with another op", "rank 0 reduces with another op");
    const auto operation = [](TwoLevels& comm) {
      std::vector<float> values(3);
      if (comm.rank() == 2)
        distx::barrier(comm);
      else
        distx::broadcast(comm, values, 0);
    };
    check_odd_one(machines, operation, "rank 2 calls barrier, this rank broadcast",
                  "rank 0 calls broadcast, this rank barrier");
    const auto memory = [](TwoLevels& comm) { const auto m = comm.allocate<float>(comm.rank() == 2 ? 5 : 4); };
    check_odd_one(machines, memory, "rank 2 passes 5 elements, this rank 4", "rank 0 passes 4 elements, this rank 5");
  }
}

TEST_CASE("a rank that fails by itself ends every wait of the others, on both levels") {
  const std::vector<std::pair<std::string, void (*)(TwoLevels&)>> waits{
      {"all_reduce", [](TwoLevels& comm) { distx::all_reduce(comm, std::vector<float>(1000), distx::sum); }},
      {"started all_reduce",
       [](TwoLevels& comm) {
         std::vector<float> values(1000);
         auto pending = distx::start_all_reduce(comm, values, distx::sum);
         pending.wait();
       }},
      {"barrier", [](TwoLevels& comm) { distx::barrier(comm); }},
      {"gather", [](TwoLevels& comm) { distx::gather(comm, 1.0f, std::vector<float>(7), 0); }},
      {"receive",
       [](TwoLevels& comm) {
         float value = 0;
         distx::receive(comm, value, 4);
       }},
      {"split", [](TwoLevels& comm) { const auto part = comm.split(0, 0); }},
      {"allocate", [](TwoLevels& comm) { const auto memory = comm.allocate<float>(10); }},
  };
  for (const auto& [name, wait] : waits) {
    CAPTURE(name);
    for (const bool throws : {false, true}) {
      CAPTURE(throws);
      // The middle rank of a host of three, which does not represent its host.
      const auto all = outcomes("0112223", [&, join = wait](TwoLevels& comm) {
        if (comm.rank() != 4) return join(comm);
        if (!throws) return distx::broadcast(comm, std::vector<float>(4), 9);
        auto moved = std::move(comm);
        throw std::runtime_error("out of luck");
      });
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        CAPTURE(rank);
        CAPTURE(all[rank].words);
        if (rank == 4) {
          CHECK(all[rank].says(throws ? "out of luck" : "invalid root 9: must be in [0, 7)"));
          continue;
        }
        CHECK(all[rank].type == "RevokedError");
        CHECK(all[rank].says(throws ? "destroyed by an exception" : "invalid root 9"));
        CHECK(all[rank].says(" on rank " + std::to_string(rank) + " of 7 (threads+threads): "));
      }
    }
  }
}

TEST_CASE("an error names a failed rank by its global number") {
  const auto all = outcomes("0112223", [](TwoLevels& comm) {
    if (comm.rank() == 5) {
      const auto gone = std::move(comm);
      return;
    }
    try {
      distx::barrier(comm);
    } catch (const distx::RankFailure& failure) {
      if (failure.failed_rank() != 5) throw std::logic_error(failure.what());
      throw;
    }
  });
  int failures = 0;
  for (const std::size_t rank : {0u, 1u, 2u, 3u, 4u, 6u}) {
    CAPTURE(all[rank].words);
    failures += all[rank].type == "RankFailure" ? 1 : 0;
    const bool typed = all[rank].type == "RankFailure" || all[rank].type == "RevokedError";
    CHECK(typed);
  }
  CHECK(all[3].says("has destroyed its communicator"));
  CHECK(failures >= 1);
}

TEST_CASE("a revocation reaches every host") {
  const auto all = outcomes("0112", [](TwoLevels& comm) {
    if (comm.rank() == 1) comm.revoke("enough is enough");
    for (int call = 0; call < 3; ++call) {
      const auto outcome = outcome_of([&] { distx::barrier(comm); });
      if (outcome.type != "RevokedError" || !outcome.says("enough is enough"))
        throw std::logic_error(outcome.type + ": " + outcome.words);
    }
  });
  CHECK_MESSAGE(test::all_say(all, "done", ""), test::text_of(all));
}

TEST_CASE("a rank that does not join times out on all others") {
  std::atomic<int> ended{0};
  const auto all = outcomes(
      "0011",
      [&](TwoLevels& comm) {
        struct Ended {
          std::atomic<int>& count;
          ~Ended() {
            ++count;
            count.notify_all();
          }
        };
        if (comm.rank() != 3) {
          const Ended at_end{ended};
          return distx::barrier(comm);
        }
        for (int now = ended; now < 3; now = ended) ended.wait(now);
      },
      100ms);
  int timeouts = 0;
  for (const std::size_t rank : {0u, 1u, 2u}) {
    CAPTURE(all[rank].words);
    timeouts += all[rank].type == "TimeoutError" ? 1 : 0;
    const bool typed = all[rank].type == "TimeoutError" || all[rank].type == "RevokedError";
    CHECK(typed);
    CHECK(all[rank].says("timed out after 0.1 s: rank"));
  }
  CHECK(timeouts >= 1);
}

/// Returns the given local ranks.
struct Pretended : distx::ThreadConnector {
  Pretended(distx::ThreadConnector connector, std::vector<std::pair<int, int>> told)
      : distx::ThreadConnector(std::move(connector)), local(std::move(told)) {}
  [[nodiscard]] int local_rank() const { return local[static_cast<std::size_t>(rank())].first; }
  [[nodiscard]] int local_size() const { return local[static_cast<std::size_t>(rank())].second; }
  std::vector<std::pair<int, int>> local;
};

TEST_CASE("local ranks that match no assignment to hosts, or several, are rejected on every rank") {
  const std::vector<std::pair<std::vector<std::pair<int, int>>, std::string>> cases{
      {{{0, 2}, {0, 2}, {1, 2}, {1, 2}}, "rank 2 reports local rank 1 of 2, which fits more than one host; start"},
      {{{0, 2}, {1, 2}, {2, 2}, {0, 1}}, "rank 2 reports local rank 2 of 2, which fits no host"},
      {{{0, 2}, {1, 2}, {0, 2}, {0, 1}}, "rank 2 reports local rank 0 of 2, and the other local ranks are missing"},
  };
  for (const auto& [local, sentence] : cases) {
    std::vector<Outcome> all(4);
    distx::spawn(4, [&, &told = local](distx::ThreadConnector& connector) {
      Pretended pretended(connector, told);
      all[static_cast<std::size_t>(connector.rank())] = outcome_of([&] { TwoLevels comm(pretended); });
    });
    CHECK_MESSAGE(test::all_say(all, "another error", sentence), test::text_of(all));
  }
}

TEST_CASE("inner communicators in another order than the outer one are rejected on every rank") {
  std::vector<Outcome> all(4);
  distx::spawn(4, [&](distx::ThreadConnector& connector) {
    all[static_cast<std::size_t>(connector.rank())] = outcome_of([&] {
      Threads outer(connector);
      Threads inner = outer.split(outer.rank() / 2, -outer.rank());
      TwoLevels comm(std::move(inner), std::move(outer));
    });
  });
  CHECK_MESSAGE(test::all_say(all, "InvalidArgument", "must have the same order in both communicators"),
                test::text_of(all));
}

}  // namespace
