// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Memory that the ranks of each host share, of a communicator of several hosts.
#include <doctest/doctest.h>

#include <array>
#include <numeric>

#include "comm/made_up_machines.hpp"
#include "comm/outcomes.hpp"
#include "distx/comm/hierarchical.hpp"

namespace {

using namespace std::chrono_literals;
using TwoLevels = distx::Hierarchical<distx::ThreadCommunicator, distx::ThreadCommunicator>;

/// Runs `f(comm)` on thread ranks of these hosts, and returns the outcome of each.
template <class F>
std::vector<test::Outcome> on_hosts(std::string_view machines, F f) {
  std::vector<test::Outcome> all(machines.size());
  distx::spawn(distx::threads(static_cast<int>(machines.size()), 1min), [&](distx::ThreadConnector& connector) {
    test::MadeUpMachines made_up(connector, machines);
    TwoLevels comm(made_up, 1min);
    all[static_cast<std::size_t>(connector.rank())] = test::outcome_of([&] { f(comm); });
    connector.barrier();
  });
  return all;
}

TEST_CASE("the ranks of a host all-gather into one memory, each call after the last reader of the one before") {
  for (const std::string_view machines : {"0011", "0112223", "00122"}) {
    CAPTURE(machines);
    std::array<const void*, 7> seen{};
    const auto all = on_hosts(machines, [&](TwoLevels& comm) {
      const auto rank = static_cast<std::size_t>(comm.rank()), size = static_cast<std::size_t>(comm.size());
      std::vector<std::size_t> counts(size);
      std::iota(counts.begin(), counts.end(), 500);
      counts[1] = 0;
      const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
      const auto memory = comm.allocate_for_host(total * sizeof(int));
      REQUIRE(memory.has_value());
      seen[rank] = memory->span.data();
      const distx::Span<int> whole(reinterpret_cast<int*>(memory->span.data()), total);
      distx::AnyCommunicator<> any(comm.share());
      for (int round = 0; round < 200; ++round) {
        const std::vector<int> mine(counts[rank], 1000 * round + comm.rank());
        if (round % 2 == 0)
          distx::all_gather(any, mine, whole, counts);
        else
          distx::start_all_gather(any, mine, whole, counts).wait();
        std::size_t wrong = 0, at = 0;
        for (std::size_t from = 0; from < size; ++from)
          for (std::size_t i = 0; i < counts[from]; ++i)
            if (whole[at++] != 1000 * round + static_cast<int>(from)) ++wrong;
        REQUIRE(wrong == 0);
      }
    });
    CAPTURE(test::text_of(all));
    for (std::size_t rank = 0; rank < machines.size(); ++rank) {
      CHECK(all[rank].type == "done");
      for (std::size_t other = 0; other < rank; ++other)
        CHECK((seen[rank] == seen[other]) == (machines[rank] == machines[other]));
    }
  }
}

TEST_CASE("the parts of a host's memory that its ranks account for are all of it") {
  std::array<std::size_t, 5> parts{};
  const auto all = on_hosts("00111", [&](TwoLevels& comm) {
    parts[static_cast<std::size_t>(comm.rank())] = comm.allocate_for_host(1000)->part.size();
  });
  CHECK(parts[0] + parts[1] == 1000);
  CHECK(parts[2] + parts[3] + parts[4] == 1000);
  for (const std::size_t part : parts) CHECK(part > 300);
}

TEST_CASE("one host has common memory, and hosts of one rank or of ranks in another order have no memory of a host") {
  for (const std::string_view machines : {"000", "012", "010", "0011"}) {
    CAPTURE(machines);
    const auto all = on_hosts(machines, [&](TwoLevels& comm) {
      const bool one_host = machines == "000";
      CHECK(comm.allocate_for_host(64).has_value() == (machines == "0011"));
      CHECK(comm.allocate_common(64, {}).has_value() == one_host);
      CHECK(distx::AnyCommunicator<>(comm.share()).allocate_common(64, {}).has_value() == one_host);
    });
    for (const auto& outcome : all) CHECK(outcome.type == "done");
  }
}

TEST_CASE("different sizes of a host's memory are a mismatch on every rank") {
  const auto all = on_hosts(
      "00122", [](TwoLevels& comm) { static_cast<void>(comm.allocate_for_host(comm.rank() == 4 ? 128 : 64)); });
  for (const auto& outcome : all) {
    CHECK(outcome.type == "MismatchError");
    CHECK(outcome.says("allocate_for_host"));
    CHECK((outcome.says("passes 128 elements") || outcome.says("passes 64 elements")));
  }
}

}  // namespace
