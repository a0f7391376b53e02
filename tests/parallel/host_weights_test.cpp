// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Several hosts whose ranks share memory: weights that are gathered at stage 3, and shared below it, are one copy for
// each host.
#include <doctest/doctest.h>
#include <distx/comm/hierarchical.hpp>
#include <distx/parallel/detail/engine/training_engine.hpp>
#include <distx/threads.hpp>

#include <algorithm>
#include <array>
#include <atomic>

#include "comm/made_up_machines.hpp"
#include "stages.hpp"

namespace {

using namespace std::chrono_literals;
using TwoLevels = distx::Hierarchical<distx::ThreadCommunicator, distx::ThreadCommunicator>;

template <class F>
std::vector<toy::Ending> on_hosts(std::string_view machines, F f) {
  std::vector<toy::Ending> all(machines.size());
  distx::spawn(distx::threads(static_cast<int>(machines.size()), 20s), [&](distx::ThreadConnector& connector) {
    test::MadeUpMachines made_up(connector, machines);
    TwoLevels comm(made_up, 20s);
    all[static_cast<std::size_t>(connector.rank())] = toy::ending_of([&] { f(comm); });
    connector.barrier();
  });
  return all;
}
void check_done(const std::vector<toy::Ending>& all) {
  for (const auto& ending : all) {
    CAPTURE(ending.words);
    CHECK(ending.kind == "no error");
  }
}

TEST_CASE("weights gathered for each host have the bits of weights gathered for each rank") {
  for (const std::string_view machines : {"0011", "00122", "000"})
    for (const bool overlap : {false, true})
      for (const std::size_t bytes : {std::size_t{0}, std::size_t{4096}, std::size_t{distx::unlimited}}) {
        CAPTURE(machines);
        CAPTURE(overlap);
        CAPTURE(bytes);
        check_done(on_hosts(machines, [&](TwoLevels& comm) {
          const auto train = [&](bool maps, bool in_parts) {
            return stages::train(
                comm, {.options = {.bucket_bytes = bytes, .overlap = overlap, .stage = 3, .map_weights = maps},
                       .in_parts = in_parts});
          };
          const auto expected = train(false, false);
          CHECK(toy::same_bits(train(true, false), expected));
          CHECK(toy::same_bits(train(true, true), expected));
        }));
      }
}

TEST_CASE("the ranks of a host read one copy of gathered weights, of which each accounts for a part") {
  std::array<std::uint64_t, 5> with_copies{};
  for (const bool maps : {false, true}) {
    CAPTURE(maps);
    std::array<const void*, 5> seen{};
    std::array<std::uint64_t, 5> in_flight{};
    check_done(on_hosts("00111", [&](TwoLevels& comm) {
      const auto rank = static_cast<std::size_t>(comm.rank());
      const auto parameters = stages::owned();
      stages::Training training(comm, parameters, distx::SGD{}, {.stage = 3, .map_weights = maps});
      const auto weights = training.unshard(parameters[2]);
      seen[rank] = training.value(parameters[2]).data();
      CHECK(training.value(parameters[2])[7] == static_cast<float>(toy::first_weight(2, 7)));
      in_flight[rank] = training.memory().in_flight.held;
      distx::barrier(comm);  // each copy exists until all have been seen
    }));
    CHECK((seen[0] == seen[1]) == maps);
    CHECK((seen[2] == seen[3]) == maps);
    CHECK((seen[3] == seen[4]) == maps);
    CHECK(seen[0] != seen[2]);
    if (!maps) {
      with_copies = in_flight;
      continue;
    }
    // Of the gathered weights, each of two ranks accounts for a half, and each of three for a third.
    const auto saved = [&](std::size_t rank) { return with_copies[rank] - in_flight[rank]; };
    const std::uint64_t whole = saved(0) + saved(1);
    CHECK(whole > 4 * 20018);
    CHECK(saved(2) + saved(3) + saved(4) == 2 * whole);
  }
}

TEST_CASE("weights shared on each host have the bits of weights of each rank, and are one copy for each host") {
  for (const std::string_view machines : {"0011", "00122"})
    for (const int stage : {0, 1, 2})
      for (const bool overlap : {false, true}) {
        CAPTURE(machines);
        CAPTURE(stage);
        CAPTURE(overlap);
        std::array<const void*, 5> seen{};
        std::array<std::uint64_t, 5> held{};
        check_done(on_hosts(machines, [&](TwoLevels& comm) {
          const auto options = [&](bool shares) {
            return distx::DataParallelOptions{
                .bucket_bytes = 4096, .overlap = overlap, .stage = stage, .share_weights = shares};
          };
          const auto expected = stages::train(comm, {.options = options(false)});
          CHECK(toy::same_bits(stages::train(comm, {.options = options(true)}), expected));
          CHECK(toy::same_bits(stages::train(comm, {.options = options(true), .in_parts = true}), expected));

          const auto rank = static_cast<std::size_t>(comm.rank());
          auto parameters = stages::owned();
          stages::Training training(comm, parameters, distx::SGD{}, options(true));
          stages::pass(training, parameters, rank);
          training.step({.learning_rate = 1});
          seen[rank] = training.value(parameters[2]).data();
          held[rank] = training.memory().weights.held;
          const float first = training.value(parameters[2])[0];
          training.release();
          parameters[2].value()[0] = static_cast<float>(rank);  // a copy of this rank
          distx::barrier(comm);
          CHECK(parameters[2].value()[0] == static_cast<float>(rank));
          CHECK(std::isfinite(first));
        }));
        const bool shares = stage > 0;
        for (std::size_t rank = 0; rank < machines.size(); ++rank)
          for (std::size_t other = 0; other < rank; ++other)
            CHECK((seen[rank] == seen[other]) == (shares && machines[rank] == machines[other]));
        // The bytes of all weights, and of padding: once on a host, or on each rank.
        CHECK((held[0] + held[1] < 2 * 4 * 21125) == shares);
      }
}

TEST_CASE("ranks of a host that hold different units get an error on every rank") {
  for (const bool exhausted : {false, true}) {  // the memory for gathered weights, on the rank that holds more units
    CAPTURE(exhausted);
    std::atomic<int> hold{0};
    for (const auto& ending : on_hosts("0011", [&](TwoLevels& comm) {
           const auto parameters = stages::owned();
           stages::Training training(comm, parameters, distx::SGD{}, {.stage = 3});
           std::optional first = training.unshard(parameters[exhausted ? 0 : 6]);
           std::optional<decltype(training)::scope> second;
           if (exhausted) second = training.unshard(parameters[3]);
           ++hold;
           if (comm.rank() != 1) first.reset();
           const auto third = training.unshard(parameters[exhausted ? 6 : 3]);
         })) {
      CAPTURE(ending.words);
      CHECK((ending.kind == "mismatch" || ending.kind == "revoked"));
      CHECK(toy::says(ending.words, "or has other units unsharded"));
    }
    CHECK(hold == 4);
  }
}

TEST_CASE("loaded weights reach the hosts whose ranks share them, also frozen ones") {
  for (const int stage : {1, 2, 3})
    for (const bool shares : {false, true}) {
      CAPTURE(stage);
      CAPTURE(shares);
      check_done(on_hosts("00122", [&](TwoLevels& comm) {
        std::vector<distx::Parameter<float>> parameters;
        for (const std::size_t size : {1000u, 3u, 5000u})
          parameters.emplace_back("layer" + std::to_string(parameters.size()), size,
                                  distx::ParameterOptions{.trainable = parameters.size() != 1});
        stages::Training training(
            comm, parameters, distx::SGD{},
            {.bucket_bytes = 4096, .stage = stage, .map_weights = shares, .share_weights = stage < 3 && shares});
        const auto state = training.state();
        distx::detail::TrainingAccess::engine(training).restore(
            distx::detail::StepCall::load, state.counters, {}, std::source_location::current(), [&] {
              for (const auto& array : state.arrays)
                std::fill_n(static_cast<float*>(array.values.data()), array.values.size(), 2.0f);
              return true;
            });
        for (const auto& parameter : parameters) {
          const auto weights = training.unshard(parameter);
          const auto values = training.value(parameter);
          CHECK(std::count(values.begin(), values.end(), 2.0f) == static_cast<std::ptrdiff_t>(values.size()));
        }
      }));
    }
}

TEST_CASE("ranks without a batch take part while others hold several units of their host") {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{4096}}) {
    CAPTURE(bytes);
    check_done(on_hosts("0011", [&](TwoLevels& comm) {
      const auto train = [&](bool maps) {
        const auto parameters = stages::owned();
        stages::Training training(comm, parameters, distx::SGD{},
                                  {.bucket_bytes = bytes, .stage = 3, .map_weights = maps});
        for (std::size_t step = 0; training.announce_batch(step < (comm.rank() == 1 ? 1u : 3u)) > 0; ++step) {
          if (step == 0 || comm.rank() != 1) {
            const auto whole = training.unshard(parameters);
            for (const auto& parameter : parameters) {
              const auto value = training.value(parameter), gradient = training.gradient(parameter);
              std::copy(value.begin(), value.end(), gradient.begin());
              training.ready(parameter);
            }
          }
          training.step({.learning_rate = 0.5});
        }
        std::vector<float> all;
        const auto whole = training.unshard(parameters);
        for (const auto& p : parameters) all.insert(all.end(), p.value().begin(), p.value().end());
        return all;
      };
      CHECK(toy::same_bits(train(true), train(false)));
    }));
  }
}

TEST_CASE("Hybrid trains on groups of which some are one host and some are parts of two") {
  for (const int stage : {1, 2, 3}) {
    CAPTURE(stage);
    check_done(on_hosts("000111", [&](TwoLevels& comm) {
      const auto train = [&](bool shares) {
        const auto parameters = stages::owned();
        distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Hybrid> training(
            comm, parameters, distx::SGD{},
            {.stage = stage, .map_weights = shares, .share_weights = stage < 3 && shares, .group_ranks = 2});
        stages::pass(training, parameters, static_cast<std::size_t>(comm.rank()));
        training.step({.learning_rate = 0.5});
        std::vector<float> all;
        const auto whole = training.unshard(parameters);
        for (const auto& p : parameters) all.insert(all.end(), p.value().begin(), p.value().end());
        return all;
      };
      CHECK(toy::same_bits(train(true), train(false)));
    }));
  }
}

}  // namespace
