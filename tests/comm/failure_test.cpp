// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// If a rank throws, leaves or does not join, its peers are notified in time and none of their memory is accessed later.
#include <doctest/doctest.h>

#include <array>
#include <atomic>

#include "comm/notified_of_mismatch.hpp"
#include "comm/outcomes.hpp"

namespace {

using namespace std::chrono_literals;
using Comm = distx::ThreadCommunicator;
using test::Outcome;
using test::outcome_of;
using test::outcomes;

/// An event that happens once and can be waited for.
class Moment {
 public:
  void come() {
    happened_ = true;
    happened_.notify_all();
  }
  void wait() const { happened_.wait(false); }

 private:
  std::atomic<bool> happened_{false};
};

/// The calls in which a rank can wait, by name: blocking, asynchronous, and messages from and to the failing rank.
const std::vector<std::pair<std::string, void (*)(Comm&, int)>>& waits() {
  static const std::vector<std::pair<std::string, void (*)(Comm&, int)>> all{
      {"all_reduce", [](Comm& comm, int) { distx::all_reduce(comm, std::vector<float>(1000), distx::sum); }},
      {"barrier", [](Comm& comm, int) { distx::barrier(comm); }},
      {"started all_reduce",
       [](Comm& comm, int) {
         std::vector<float> values(1000);
         auto pending = distx::start_all_reduce(comm, values, distx::sum);
         pending.wait();
       }},
      {"receive",
       [](Comm& comm, int from) {
         float value = 0;
         distx::receive(comm, value, from);
       }},
      {"send", [](Comm& comm, int to) { distx::send(comm, 1.0f, to); }},
      {"split", [](Comm& comm, int) { const auto part = comm.split(0, 0); }},
  };
  return all;
}

TEST_CASE("a rank that throws ends the waits of the others, and spawn names it") {
  for (const auto& [name, wait] : waits()) {
    CAPTURE(name);
    for (int round = 0; round < 50; ++round) {
      std::array<Outcome, 3> all;
      int failed = -1;
      std::string words;
      try {
        distx::spawn(3, [&](distx::ThreadConnector& connector) {
          Comm comm(connector, 1min);
          if (comm.rank() == 1) throw std::runtime_error("out of luck");
          auto& mine = all[static_cast<std::size_t>(comm.rank())];
          mine = outcome_of([&] { wait(comm, 1); });
          if (mine.type != "done") throw distx::RevokedError(mine.words);
        });
      } catch (const distx::RankFailure& failure) {
        failed = failure.failed_rank();
        words = failure.what();
      }
      for (const std::size_t rank : {0u, 2u}) {
        CAPTURE(all[rank].words);
        const bool typed = all[rank].type == "RevokedError" || all[rank].type == "RankFailure";
        REQUIRE(typed);
        REQUIRE(all[rank].says("rank 1 "));
      }
      REQUIRE(failed == 1);
      REQUIRE(words == "distx: rank 1 of 3 ended with an exception: out of luck");
    }
  }
}

TEST_CASE("spawn names the rank that threw first, even if the others have ended before it") {
  // Rank 1 destroys its communicator, which ends rank 2, and continues to unwind after the thread of rank 2 has ended.
  static Moment rank_2_has_ended;
  struct AtThreadEnd {
    ~AtThreadEnd() { rank_2_has_ended.come(); }
  };
  struct Late {
    bool late;
    ~Late() {
      if (late) rank_2_has_ended.wait();
    }
  };
  int failed = -1;
  try {
    distx::spawn(3, [&](distx::ThreadConnector& connector) {
      const Late late{connector.rank() == 1};
      Comm comm(connector, 1min);
      if (comm.rank() == 1) throw std::runtime_error("out of luck");
      if (comm.rank() == 2) static thread_local const AtThreadEnd at_thread_end;
      distx::barrier(comm);
    });
  } catch (const distx::RankFailure& failure) {
    failed = failure.failed_rank();
  }
  CHECK(failed == 1);
}

TEST_CASE("waiting for a rank that has destroyed its communicator is a RankFailure") {
  for (const auto& [name, wait] : waits()) {
    CAPTURE(name);
    std::array<Outcome, 2> all;
    distx::spawn(2, [&](distx::ThreadConnector& connector) {
      Comm comm(connector, 1min);
      if (comm.rank() == 0) all[0] = outcome_of([&] { wait(comm, 1); });
    });
    CAPTURE(all[0].words);
    CHECK(all[0].type == "RankFailure");
    CHECK(all[0].says("rank 1 has destroyed its communicator"));
  }
}

TEST_CASE("messages that a rank sent before it left still arrive") {
  std::array<Outcome, 2> all;
  float got = 0;
  distx::spawn(2, [&](distx::ThreadConnector& connector) {
    Comm comm(connector, 1min);
    all[static_cast<std::size_t>(comm.rank())] = outcome_of([&] {
      float total = static_cast<float>(comm.rank() + 1);
      distx::all_reduce(comm, total, distx::sum);
      if (comm.rank() == 0)
        distx::receive(comm, got, 1);
      else
        distx::send(comm, total, 0);
    });
  });
  CHECK(all[0].type == "done");
  CHECK(all[1].type == "done");
  CHECK(got == 3);
}

TEST_CASE("a timeout names the call in which the missing rank waits") {
  constexpr auto line = __LINE__ + 11;
  const std::string named =
      "rank 2 did not join; rank 2 waits in an asynchronous all_gather of 4 float32 elements, called in line " +
      std::to_string(line);
  // On a busy machine the deadline may pass before every rank has begun its call.
  std::array<Outcome, 3> all;
  const auto round = [&](distx::ThreadConnector& connector) {
    Comm comm(connector, connector.rank() == 2 ? distx::Timeout(1min) : distx::Timeout(200ms));
    std::vector<float> values(4), more(12);
    connector.barrier();
    all[static_cast<std::size_t>(comm.rank())] = outcome_of([&] {
      if (comm.rank() == 2) return distx::start_all_gather(comm, values, more).wait();
      distx::all_reduce(comm, values, distx::sum);
    });
    connector.barrier();
  };
  const auto says = [&] { return all[0].says(named) && all[1].says(named); };
  for (int attempt = 0; attempt < 50 && !says(); ++attempt) distx::spawn(distx::threads(3, 1min), round);
  CAPTURE(all[0].words);
  CAPTURE(all[1].words);
  CHECK(says());
}

TEST_CASE("a timeout names the rank that did not join") {
  const std::vector<std::pair<std::string, std::string>> expected{
      {"all_reduce", "timed out after 0.5 s: rank 2 did not join"},
      {"barrier", "timed out after 0.5 s: rank 2 did not join"},
      {"started all_reduce", "timed out after 0.5 s: rank 2 did not join"},
      {"receive", "timed out after 0.5 s: rank 2 did not send a message with tag 0"},
      {"send", "timed out after 0.5 s: rank 2 did not receive a message with tag 0"},
      {"split", "timed out after 0.5 s: rank 2 did not join"},
  };
  for (std::size_t number = 0; number < expected.size(); ++number) {
    CAPTURE(expected[number].first);
    Moment over;
    std::atomic<int> waiting{2};
    const auto all = outcomes(
        3,
        [&](Comm& comm) {
          if (comm.rank() == 2) return over.wait();
          struct Ended {
            std::atomic<int>& count;
            Moment& last;
            ~Ended() {
              if (--count == 0) last.come();
            }
          } const ended{waiting, over};
          waits()[number].second(comm, 2);
        },
        500ms);
    // The first rank to time out revokes the communicator on the other.
    int timeouts = 0;
    for (const std::size_t rank : {0u, 1u}) {
      CAPTURE(all[rank].words);
      timeouts += all[rank].type == "TimeoutError" ? 1 : 0;
      const bool typed = all[rank].type == "TimeoutError" || all[rank].type == "RevokedError";
      CHECK(typed);
      CHECK(all[rank].says(expected[number].second));
    }
    CHECK(timeouts >= 1);
  }
}

TEST_CASE("the deadline covers all ranks together: a rank that joins does not restart it") {
  const auto begin = std::chrono::steady_clock::now();
  const auto all = outcomes(
      8,
      [&](Comm& comm) {
        std::this_thread::sleep_until(begin + comm.rank() * 50ms);
        distx::barrier(comm);
      },
      100ms);
  CHECK_MESSAGE(std::ranges::any_of(all, [](const Outcome& one) { return one.type == "TimeoutError"; }), text_of(all));
}

TEST_CASE("a revoked communicator ends the current and every next call with the first reason") {
  const auto all = outcomes(3, [](Comm& comm) {
    if (comm.rank() == 0) comm.revoke("enough is enough");
    for (int call = 0; call < 3; ++call) {
      const auto outcome = outcome_of([&] { distx::barrier(comm); });
      if (outcome.type != "RevokedError" || !outcome.says("rank 0 revoked the communicator: enough is enough"))
        throw std::logic_error(outcome.type + ": " + outcome.words);
      const auto started = outcome_of([&] {
        auto pending = distx::start_barrier(comm);
        pending.wait();
      });
      if (started.type != "RevokedError") throw std::logic_error(started.type + ": " + started.words);
      comm.revoke("too late");
    }
  });
  CHECK_MESSAGE(all_say(all, "done", ""), text_of(all));
}

TEST_CASE("test returns true for a message once the communicator is revoked") {
  const auto all = outcomes(2, [](Comm& comm) {
    if (comm.rank() == 1) return comm.revoke("enough is enough");
    float value = 0;
    auto pending = distx::start_receive(comm, value, 1);
    distx::detail::wait_until(20s, [&] { return pending.test(); }, [] { return false; });
    if (!pending.test()) throw std::logic_error("it goes on for ever");
    pending.wait();
  });
  CHECK(all[0].type == "RevokedError");
  CHECK_MESSAGE(all[0].says("rank 1 revoked the communicator: enough is enough"), text_of(all));
}

TEST_CASE("a rank that is notified of another one's failed allocation throws RevokedError with the code ENOMEM") {
  const auto all = outcomes(3, [](Comm& comm) { test::check_notified_of_failed_allocation(comm); });
  CHECK_MESSAGE(all_say(all, "done", ""), text_of(all));
}

TEST_CASE("a rank that is notified of another one's own error throws NonFiniteError, or what is not a rank loss") {
  for (auto* const check : {test::check_notified_of_not_finite<Comm>, test::check_notified_of_own_error<Comm>}) {
    const auto all = outcomes(3, [&](Comm& comm) { check(comm); });
    CHECK_MESSAGE(all_say(all, "done", ""), text_of(all));
  }
}

TEST_CASE("revoking a group does not affect its parent") {
  const auto all = outcomes(4, [](Comm& comm) {
    auto half = comm.split(comm.rank() % 2, 0);
    if (comm.rank() == 0) half.revoke("this half only");
    const auto outcome = outcome_of([&] { distx::barrier(half); });
    if ((outcome.type == "done") != (comm.rank() % 2 == 1)) throw std::logic_error(outcome.words);
    distx::barrier(comm);
  });
  CHECK_MESSAGE(all_say(all, "done", ""), text_of(all));
}

TEST_CASE("a revoker ends the calls of groups that were split from its communicator, and of groups of these") {
  const auto all = outcomes(2, [](Comm& comm) {
    auto group = comm.split(0, comm.rank());
    auto inner = group.split(0, comm.rank());
    if (comm.rank() == 1) distx::AnyCommunicator<>(comm.share()).revoker()("this rank's data is stuck");
    for (Comm* each : {&inner, &group}) {
      const auto outcome = outcome_of([&] { distx::barrier(*each); });
      if (outcome.type != "RevokedError" || !outcome.says("this rank's data is stuck"))
        throw std::logic_error(outcome.type + ": " + outcome.words);
    }
  });
  CHECK_MESSAGE(all_say(all, "done", ""), text_of(all));
}

TEST_CASE("destroying a Pending during unwinding revokes the communicator") {
  for (const auto* form : {"collective", "message"}) {
    CAPTURE(form);
    const bool message = std::string(form) == "message";
    const auto all = outcomes(2, [&](Comm& comm) {
      std::vector<float> values(1000);
      if (comm.rank() == 1) {
        // Rank 0 never joins this call; without the error both would wait indefinitely.
        if (message) {
          auto pending = distx::start_receive(comm, values, 0, 5);
          throw std::runtime_error("on the way");
        }
        auto pending = distx::start_all_reduce(comm, values, distx::sum);
        throw std::runtime_error("on the way");
      }
      distx::barrier(comm);
    });
    CHECK(all[1].type == "another error");
    CHECK(all[1].words == "on the way");
    CAPTURE(all[0].words);
    CHECK(all[0].type == "RevokedError");
    CHECK(all[0].says("rank 1 revoked the communicator: an asynchronous"));
    CHECK(all[0].says("abandoned by an exception"));
  }
}

TEST_CASE("the error of an asynchronous call that is not waited for is thrown by the next call") {
  const auto all = outcomes(2, [](Comm& comm) {
    std::vector<float> values(comm.rank() == 0 ? 3 : 4);
    { auto abandoned = distx::start_all_reduce(comm, values, distx::sum); }
    distx::barrier(comm);
  });
  CHECK_MESSAGE(all_say(all, "RevokedError", "passes"), text_of(all));
}

TEST_CASE("an exception of a custom op reaches its caller and revokes the communicator") {
  struct Refusal {
    float operator()(float a, float b) const {
      if (b == 13) throw std::domain_error("thirteen");
      return a + b;
    }
  };
  const auto all = outcomes(2, [](Comm& comm) {
    std::vector<float> values(100, static_cast<float>(comm.rank()));
    if (comm.rank() == 1) values.back() = 13;  // in the slice that rank 1 reduces
    distx::all_reduce(comm, values, Refusal{});
  });
  CHECK(all[1].type == "another error");
  CHECK(all[1].words == "thirteen");
  CHECK(all[0].type == "RevokedError");
  CHECK(all[0].says("rank 1 revoked the communicator: thirteen"));
}

TEST_CASE("destroying a started list whose op throws a non-exception makes the next call throw") {
  struct Thrower {
    int operator()(int, int) const { throw 5; }
  };
  const auto all = outcomes(2, [](Comm& comm) {
    std::vector<std::vector<int>> list(2, std::vector<int>(10));
    { auto abandoned = distx::start_all_reduce(comm, list, list, Thrower{}); }
    distx::barrier(comm);
  });
  CHECK_MESSAGE(all_say(all, "RevokedError", " revoked the communicator: "), text_of(all));
}

TEST_CASE("communicators and Pendings may outlive the connector, and a moved one works") {
  const auto all = outcomes(2, [](Comm& comm) {
    Comm moved = std::move(comm);
    Comm other = moved.share();
    float value = 1;
    distx::all_reduce(moved, value, distx::sum);
    distx::all_reduce(other, value, distx::sum);
    if (value != 4) throw std::logic_error("wrong sum");
    comm = std::move(moved);
  });
  CHECK_MESSAGE(all_say(all, "done", ""), text_of(all));
}

TEST_CASE("a communicator rejects a connector of an unsuitable kind") {
  const auto all = outcomes(2, [](Comm& comm) {
    struct Pretended : distx::SelfConnector {
      [[nodiscard]] int size() const noexcept { return 2; }
    } pretended;
    const auto outcome = outcome_of([&] { distx::SerialCommunicator serial(pretended); });
    if (!outcome.says("a SerialCommunicator has one rank")) throw std::logic_error(outcome.words);
    distx::barrier(comm);
  });
  CHECK_MESSAGE(all_say(all, "done", ""), text_of(all));
}

}  // namespace
