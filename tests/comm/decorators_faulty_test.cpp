// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Faults that are caused on purpose: which calls they hit, and how the ranks end.
#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <numeric>

#include "distx/comm/decorators/faulty.hpp"
#include "distx/distx.hpp"

namespace {

using namespace std::chrono_literals;
using FaultyThreads = distx::Faulty<distx::ThreadCommunicator>;
using distx::Fault;

/// The numbers of those of 200 calls on each of two ranks whose result has one wrong bit.
std::vector<std::vector<int>> corrupted(const std::vector<Fault>& faults, std::uint64_t seed, bool started = false) {
  std::vector<std::vector<int>> all(2);
  distx::spawn(2, [&](distx::ThreadConnector& connector) {
    FaultyThreads comm(distx::ThreadCommunicator(connector), faults, seed);
    for (int i = 0; i < 200; ++i) {
      std::vector<std::uint32_t> values(5, 3);
      if (started)
        distx::start_all_reduce(comm, values, distx::sum).wait();
      else
        distx::all_reduce(comm, values, distx::sum);
      int bits = 0;
      for (const auto value : values) bits += std::popcount(value ^ 6u);
      CHECK(bits <= 1);
      if (bits == 1) all[static_cast<std::size_t>(comm.rank())].push_back(i);
    }
    CHECK(comm.caused() == all[static_cast<std::size_t>(comm.rank())].size());
  });
  return all;
}

TEST_CASE("data is corrupted in the calls that a rule names, and by the seed") {
  const auto always = corrupted({{.kind = Fault::Kind::corrupt, .rank = 1, .first = 7, .last = 9}}, 1);
  CHECK(always[0].empty());
  CHECK(always[1] == std::vector{7, 8, 9});
  const Fault sometimes{.kind = Fault::Kind::corrupt, .probability = 0.1};
  const auto some = corrupted({sometimes}, 1);
  for (const auto& calls : some) {  // 20 are expected; fewer than 5 or more than 45 have a probability below 1e-5
    CHECK(calls.size() > 5);
    CHECK(calls.size() < 45);
  }
  CHECK(some[0] != some[1]);
  CHECK(corrupted({sometimes}, 1) == some);
  CHECK(corrupted({sometimes}, 1, true) == some);
  CHECK(corrupted({sometimes}, 2) != some);
  CHECK(corrupted({{.kind = Fault::Kind::corrupt, .call = distx::calls::CollectiveKind::broadcast}}, 1)[0].empty());
}

TEST_CASE("a dropped call and an error end on every rank in errors") {
  for (const auto kind : {Fault::Kind::drop, Fault::Kind::error}) {
    std::vector<std::string> words(3);
    distx::spawn(3, [&](distx::ThreadConnector& connector) {
      FaultyThreads comm(distx::ThreadCommunicator(connector, 300ms),
                         {{.kind = kind, .rank = 1, .first = 1, .last = 1}});
      try {
        for (int i = 0; i < 2; ++i) {
          int value = 1;
          distx::all_reduce(comm, value, distx::sum);
        }
        distx::barrier(comm);
      } catch (const distx::MismatchError& error) {
        words[static_cast<std::size_t>(comm.rank())] = error.what();
      } catch (const distx::BackendError& error) {
        words[static_cast<std::size_t>(comm.rank())] = error.what();
        comm.revoke(error.what());
      } catch (const distx::RevokedError& error) {
        words[static_cast<std::size_t>(comm.rank())] = error.what();
      }
    });
    for (const auto& sentence : words) {
      CAPTURE(sentence);
      CHECK(sentence.find(kind == Fault::Kind::drop ? "all_reduce" : "a fault that Faulty was asked for, in call 1") !=
            std::string::npos);
    }
  }
}

TEST_CASE("a delay beyond the deadline gives a TimeoutError that names the rank") {
  for (const auto duration : {1ms, 2000ms}) {
    std::vector<std::string> words(2);
    distx::spawn(2, [&](distx::ThreadConnector& connector) {
      FaultyThreads comm(distx::ThreadCommunicator(connector, duration == 1ms ? distx::Timeout(60s) : 200ms),
                         {{.kind = Fault::Kind::delay, .rank = 1, .duration = duration}});
      try {
        distx::barrier(comm);
      } catch (const distx::Error& error) {
        words[static_cast<std::size_t>(comm.rank())] = error.what();
      }
    });
    if (duration == 1ms) {
      CHECK(words == std::vector<std::string>(2));
    } else {
      CHECK(words[0].find("timed out after 0.2 s: rank 1") != std::string::npos);
      CHECK(!words[1].empty());
    }
  }
}

TEST_CASE("a guarded training finds the step in which one rank received another sum") {
  std::vector<std::string> words(3);
  distx::spawn(3, [&](distx::ThreadConnector& connector) {
    FaultyThreads comm(
        distx::ThreadCommunicator(connector),
        {{.kind = Fault::Kind::corrupt, .call = distx::calls::CollectiveKind::all_reduce, .rank = 2, .first = 10}});
    std::vector<distx::Parameter<float>> parameters;
    parameters.emplace_back("head.weight", std::size_t{1000});
    distx::DataParallel<distx::ZeRO<0>> training(comm, parameters, distx::SGD{}, {.guard_every = 1});
    try {
      for (int step = 0; step < 100; ++step) {
        const auto gradient = training.gradient(parameters[0]);
        std::fill(gradient.begin(), gradient.end(), 0.5f);
        training.ready(parameters[0]);
        training.step({.learning_rate = 0.1});
      }
    } catch (const distx::MismatchError& error) {
      words[static_cast<std::size_t>(comm.rank())] = error.what();
    }
  });
  for (const auto& sentence : words)
    CHECK(sentence.find("the hash of the weights of 'head.weight' after step ") != std::string::npos);
}

TEST_CASE("an asynchronous call that is dropped is complete at once, and receives nothing") {
  distx::SelfConnector self;
  distx::Faulty comm(distx::SerialCommunicator(self), {{.kind = Fault::Kind::drop, .last = 0}});
  const std::vector<int> sent{1, 2};
  for (const int expected : {0, 1}) {
    std::vector<int> received(2);
    auto pending = distx::start_all_reduce(comm, sent, received, distx::sum);
    pending.wait();
    CHECK(received[0] == expected);
  }
  CHECK(comm.caused() == 1);
}

TEST_CASE("a rank is ended in the call that a rule names") {
  const pid_t child = ::fork();
  if (child == 0) {
    distx::SelfConnector self;
    distx::Faulty comm(distx::SerialCommunicator(self), {{.kind = Fault::Kind::kill, .first = 2}});
    distx::barrier(comm);
    distx::barrier(comm);
    distx::barrier(comm);
    ::_exit(0);
  }
  REQUIRE(child > 0);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGKILL);
}

TEST_CASE("invalid faults are refused") {
  distx::SelfConnector self;
  CHECK_THROWS_AS(distx::Faulty(distx::SerialCommunicator(self), {{.probability = 1.5}}), distx::InvalidArgument);
  CHECK_THROWS_AS(distx::Faulty(distx::SerialCommunicator(self), {{.duration = -1ns}}), distx::InvalidArgument);
}

}  // namespace
