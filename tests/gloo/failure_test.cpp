// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// If ranks are killed, throw, or do not join, the others' calls throw within the deadline.
#include <doctest/doctest.h>

#include <csignal>

#include "comm/notified_of_mismatch.hpp"
#include "connect/in_folder.hpp"
#include "distx/file.hpp"
#include "distx/gloo.hpp"
#include "logged.hpp"
#include "shm/forked.hpp"

namespace {

using namespace std::chrono_literals;
using Comm = distx::GlooCommunicator;

/// The calls in which a rank can wait for rank `other`, by name.
const std::vector<std::pair<std::string, void (*)(Comm&, int)>>& waits() {
  static const std::vector<std::pair<std::string, void (*)(Comm&, int)>> all{
      {"all_reduce", [](Comm& comm, int) { distx::all_reduce(comm, std::vector<float>(100), distx::sum); }},
      {"large all_reduce", [](Comm& comm, int) { distx::all_reduce(comm, std::vector<float>(1000000), distx::sum); }},
      {"started all_reduce",
       [](Comm& comm, int) {
         std::vector<float> values(1000);
         auto pending = distx::start_all_reduce(comm, values, distx::sum);
         pending.wait();
       }},
      {"receive",
       [](Comm& comm, int other) {
         std::vector<float> values(100000);
         distx::receive(comm, values, other);
       }},
      {"started receive",
       [](Comm& comm, int other) {
         std::vector<float> values(100000);
         distx::start_receive(comm, values, other).wait();
       }},
      {"send", [](Comm& comm, int other) { distx::send(comm, std::vector<float>(100000), other); }},
      {"split", [](Comm& comm, int) { const auto half = comm.split(0, 0); }},
  };
  return all;
}

TEST_CASE("every wait for a killed rank throws RankFailure") {
  for (std::size_t which = 0; which < waits().size(); ++which) {
    CAPTURE(waits()[which].first);
    const auto ended = test::forked(3, [&](test::ForkedConnector& connector, test::Board&) {
      Comm comm(connector, {.deadline = 50s});
      distx::barrier(comm);
      connector.barrier();  // data that a killed rank has sent may be lost
      if (comm.rank() == 1) ::raise(SIGKILL);
      const distx::Deadline soon(20s);
      try {
        waits()[which].second(comm, 1);
      } catch (const distx::RankFailure& failure) {
        // The connector has no failure channel, so a rank may learn of rank 1 by the end of the other one's connection.
        return failure.failed_rank() == comm.rank() || soon.expired() ? 11 : 0;
      } catch (const std::exception& error) {
        std::cerr << error.what() << '\n';
        return 12;
      }
      return 10;
    });
    CAPTURE(ended[0]);
    CAPTURE(ended[2]);
    CHECK(ended == std::vector<int>{0, 1000 + SIGKILL, 0});
  }
}

TEST_CASE("a rank that is killed in the middle of a message does not hold the other until its deadline") {
  // Where the sender is not given a core in time, the message is complete before it is killed, and it is tried again.
  constexpr int complete = 12;
  std::vector<int> ended;
  for (int attempt = 0; attempt < 20 && (ended.empty() || ended[0] == complete); ++attempt) {
    const test::NewFolder folder;
    ended = test::forked(2, [&](test::ForkedConnector& control, test::Board& board) {
      distx::FileConnector connector(folder.path(), control.rank(), 2, {.deadline = 50s});
      Comm comm(connector, {.deadline = 50s});
      std::vector<float> values(std::size_t{1} << 25, comm.rank() == 0 ? 0.0f : 1.0f);
      if (comm.rank() == 1) {
        auto pending = distx::start_send(comm, values, 0);
        distx::detail::wait_until(20s, [&] { return board.steps == 1; }, [] { return false; });
        ::raise(SIGKILL);
      }
      auto pending = distx::start_receive(comm, values, 1);
      const std::atomic_ref<float> first(values.front()), last(values.back());
      distx::detail::wait_until(20s, [&] { return first.load() != 0; }, [] { return false; });
      board.steps = 1;
      const distx::Deadline soon(10s);
      try {
        pending.wait();
      } catch (const distx::Error& error) {
        if (!distx::is_rank_loss(error) || soon.expired()) return 11;
        return last.load() == 0 ? 0 : complete;
      }
      return complete;
    });
  }
  CHECK(ended == std::vector<int>{0, 1000 + SIGKILL});
}

TEST_CASE("a wait that expires names the ranks that have not joined") {
  std::string sentence;
  std::atomic<bool> over{false};
  distx::spawn(4, [&](distx::ThreadConnector& connector) {
    Comm comm(connector, {.deadline = 1s});
    if (comm.rank() == 0) {
      try {
        distx::barrier(comm);
      } catch (const distx::TimeoutError& error) {
        sentence = error.message();
      }
      over = true;
    } else {
      distx::detail::wait_until(30s, [&] { return over.load(); }, [] { return false; });
      CHECK_THROWS_AS(distx::barrier(comm), distx::RevokedError);
    }
  });
  CHECK(sentence == "timed out after 1 s: ranks 1, 2 and 3 did not join");
}

TEST_CASE("with DISTX_LOG=info a wait says once, after a quarter of its deadline, which rank is missing") {
  const auto calls = test::logged([] {
    distx::spawn(3, [](distx::ThreadConnector& connector) {
      Comm collectives(connector, {.deadline = 800ms}), messages(connector, {.deadline = 800ms});
      int value = 0;
      if (connector.rank() == 0) {
        CHECK_THROWS_AS(distx::barrier(collectives), distx::TimeoutError);
        CHECK_THROWS_AS(distx::receive(messages, value, 2), distx::TimeoutError);
      }
      connector.barrier();
    });
  });
  CHECK(
      calls.starts_with("distx: barrier on rank 0 of 3 (gloo): waiting for 0.2 s: rank 1 did not join [failure_test"));
  CHECK(calls.find("distx: receive on rank 0 of 3 (gloo): waiting for 0.2 s: rank 2 did not send [") !=
        std::string::npos);
  CHECK(std::count(calls.begin(), calls.end(), '\n') == 2);
  // Without a failure channel.
  const auto ended = test::forked(2, [](test::ForkedConnector& connector, test::Board&) {
    const auto call = test::logged([&] {
      Comm comm(connector, {.deadline = 800ms});
      if (comm.rank() == 0) CHECK_THROWS_AS(distx::barrier(comm), distx::TimeoutError);
      connector.barrier();
    });
    return (call.find("waiting for 0.2 s: rank 1 did not join") != std::string::npos) == (connector.rank() == 0) ? 0
                                                                                                                 : 1;
  });
  CHECK(ended == std::vector<int>{0, 0});
}

TEST_CASE("an overdue message names its rank") {
  distx::spawn(2, [](distx::ThreadConnector& connector) {
    Comm comm(connector, {.deadline = 500ms});
    int value = 0;
    std::string sentence;
    if (comm.rank() == 0) try {
        distx::start_receive(comm, value, 1, 7).wait();
      } catch (const distx::TimeoutError& error) {
        sentence = error.message();
      }
    connector.barrier();
    if (comm.rank() == 0) CHECK(sentence == "timed out after 0.5 s: rank 1 did not make the matching call");
  });
}

TEST_CASE("a rank that revokes ends every wait of the others with its reason") {
  for (std::size_t which = 0; which < waits().size(); ++which) {
    CAPTURE(waits()[which].first);
    std::array<std::string, 3> words;
    distx::spawn(3, [&](distx::ThreadConnector& connector) {
      Comm comm(connector, {.deadline = 50s});
      distx::barrier(comm);
      if (comm.rank() == 1) return comm.revoke("out of luck");
      try {
        waits()[which].second(comm, 1);
      } catch (const distx::RevokedError& error) {
        words[static_cast<std::size_t>(comm.rank())] = error.what();
      }
    });
    for (const std::size_t rank : {0u, 2u})
      CHECK(words[rank].find("rank 1 revoked the communicator: out of luck") != std::string::npos);
  }
}

TEST_CASE("the others are notified of a rank that throws") {
  std::string sentence;
  CHECK_THROWS_AS(distx::spawn(2,
                               [&](distx::ThreadConnector& connector) {
                                 Comm comm(connector, {.deadline = 50s});
                                 if (comm.rank() == 1) throw std::runtime_error("out of luck");
                                 try {
                                   distx::barrier(comm);
                                 } catch (const distx::RevokedError& error) {
                                   sentence = error.what();
                                 }
                               }),
                  distx::RankFailure);
  CHECK(sentence.find("destroyed by an exception") != std::string::npos);
}

TEST_CASE("revoking ends the wait of another thread of this rank") {
  distx::spawn(2, [](distx::ThreadConnector& connector) {
    Comm comm(connector, {.deadline = 50s});
    if (comm.rank() == 0) {
      int value = 0;
      auto pending = distx::start_receive(comm, value, 1);
      comm.revoke("enough");
      CHECK_THROWS_AS(pending.wait(), distx::RevokedError);
    }
    connector.barrier();
  });
}

TEST_CASE("messages whose sides differ") {
  std::array<std::string, 2> words;
  distx::spawn(2, [&](distx::ThreadConnector& connector) {
    Comm comm(connector, {.deadline = 50s});
    std::vector<float> values(comm.rank() == 0 ? 3 : 5000);
    try {
      if (comm.rank() == 0)
        distx::receive(comm, values, 1);
      else
        distx::send(comm, values, 0);
    } catch (const distx::MismatchError& error) {
      words[static_cast<std::size_t>(comm.rank())] = error.message();
    }
  });
  CHECK(words[0] == "expects 3 elements of type float32, rank 1 sends 5000 elements of type float32");
  CHECK(words[1].find(words[0]) != std::string::npos);
}

TEST_CASE("an address that is not this host's is refused on every rank") {
  std::array<std::string, 2> words;
  distx::spawn(2, [&](distx::ThreadConnector& connector) {
    try {
      // An address for documentation, which no host has.
      Comm comm(connector, {.address = connector.rank() == 1 ? "192.0.2.1" : ""});
    } catch (const distx::ConnectError& error) {
      words[static_cast<std::size_t>(connector.rank())] = error.what();
    }
  });
  for (const auto& sentence : words) CHECK(sentence.find("rank 1 cannot listen") != std::string::npos);
}

}  // namespace

TEST_CASE("a rank that is notified of a mismatch throws MismatchError once") {
  distx::spawn(3, [](distx::ThreadConnector& connector) {
    Comm comm(connector, {.deadline = 30s});
    test::check_notified_of_mismatch(comm);
    connector.barrier();
  });
}

TEST_CASE("a rank that is notified of another one's failed allocation throws RevokedError with the code ENOMEM") {
  distx::spawn(3, [](distx::ThreadConnector& connector) {
    Comm comm(connector, {.deadline = 30s});
    test::check_notified_of_failed_allocation(comm);
    connector.barrier();
  });
}

TEST_CASE("a rank that is notified of another one's own error throws NonFiniteError, or what is not a rank loss") {
  for (auto* const check : {test::check_notified_of_not_finite<Comm>, test::check_notified_of_own_error<Comm>})
    distx::spawn(3, [&](distx::ThreadConnector& connector) {
      Comm comm(connector, {.deadline = 30s});
      check(comm);
      connector.barrier();
    });
}
