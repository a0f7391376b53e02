// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <random>

#include "distx/mpi/detail/agreement.hpp"

// The agreement on the surviving ranks, among simulated ranks that end or stop at chosen moments.
namespace {

using distx::detail::mpi::Agreement;
using distx::detail::mpi::RankSubset;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int limit = 500;  ///< the deadline of the ranks of scenarios, in milliseconds

/// Ranks with a simulated clock and messages in order between each two.
class Simulation {
 public:
  Simulation(int size, distx::Timeout deadline, milliseconds latency = {})
      : deadline_(deadline), latency_(latency), ranks_(static_cast<std::size_t>(size)) {}

  struct InTransit {
    Agreement::time_point arrives;
    int from;
    Agreement::Message message;
  };
  struct Rank {
    std::unique_ptr<Agreement> agreement{};
    std::deque<InTransit> inbox{};
    int sends_left = 1 << 20;  ///< the rank ends in the send after these
    bool ended = false;
    std::optional<RankSubset> decision{};
  };
  Rank& operator[](int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  void pass(milliseconds time) { now_ += time; }

  void enter(int rank) {
    const auto send = [this, rank](const Agreement::Message& message) {
      Rank& self = (*this)[rank];
      for (int to = 0; to < size(); ++to) {
        if (to == rank) continue;
        self.ended = self.ended || self.sends_left-- == 0;
        if (!self.ended)
          (*this)[to].inbox.push_back({now_ + latency_, rank, Agreement::Message::from(message.words())});
      }
    };
    (*this)[rank].agreement = std::make_unique<Agreement>(rank, size(), 10 + rank, deadline_, now_, send);
  }
  /// Lets a rank receive its messages, unless `deaf`, and progress.
  void turn(int rank, bool deaf = false) {
    Rank& self = (*this)[rank];
    if (self.agreement == nullptr || self.ended || self.decision) return;
    std::vector<bool> ended;
    for (const Rank& each : ranks_) ended.push_back(each.ended);
    for (auto& inbox = self.inbox; !deaf && !self.ended && !inbox.empty() && inbox[0].arrives <= now_;
         inbox.pop_front())
      self.agreement->receive(inbox[0].from, inbox[0].message);
    if (self.ended) return;
    const auto& decision =
        self.agreement->step(now_, [&](int other) { return bool(ended[static_cast<std::size_t>(other)]); });
    if (!self.ended) self.decision = decision;
  }
  void turns(int rounds = 20) {
    for (int round = 0; round < rounds; ++round)
      for (int rank = 0; rank < size(); ++rank) turn(rank);
  }

 private:
  distx::Timeout deadline_;
  milliseconds latency_;
  std::vector<Rank> ranks_;
  Agreement::time_point now_{seconds(1000)};
};

/// Two ranks end in the sends that are given; checks that the others agree, regardless of the order of the turns.
void check_agreement(int size, int first, int first_sends, int second, int second_sends, unsigned seed) {
  CAPTURE(size);
  CAPTURE(first);
  CAPTURE(first_sends);
  CAPTURE(second);
  CAPTURE(second_sends);
  CAPTURE(seed);
  Simulation ranks(size, distx::no_timeout);
  ranks[first].sends_left = first_sends;
  ranks[second].sends_left = second_sends;
  std::mt19937 chance(seed);
  for (int turn = 0; turn < 200 * size; ++turn) {
    const int rank = static_cast<int>(chance() % static_cast<unsigned>(size));
    if (ranks[rank].agreement == nullptr)
      ranks.enter(rank);
    else
      ranks.turn(rank);
  }
  const RankSubset* agreed = nullptr;
  for (int rank = 0; rank < size; ++rank) {
    if (ranks[rank].ended) continue;
    REQUIRE(ranks[rank].decision);
    if (agreed == nullptr) agreed = &*ranks[rank].decision;
    CHECK(*ranks[rank].decision == *agreed);
    CHECK(agreed->has(rank));
    CHECK(agreed->channel >= 10 + rank);
  }
}

TEST_CASE("all surviving ranks agree, wherever two others end") {
  for (int size = 2; size <= 4; ++size)
    for (int first = 0; first < size; ++first)
      for (int second = first; second < size; ++second)
        for (int sends = 0; sends < 5 * size; ++sends)
          for (int more = 0; more < (first == second ? 1 : 5 * size); ++more)
            check_agreement(size, first, sends, second, first == second ? sends : more,
                            static_cast<unsigned>(sends * 100 + more));
}

TEST_CASE("a rank that does not enter before the deadline is excluded") {
  Simulation ranks(3, seconds(10));
  ranks.enter(0);
  ranks.enter(2);
  ranks.turns();
  CHECK_FALSE(ranks[0].decision);
  ranks.pass(seconds(11));
  ranks.turns();
  REQUIRE(ranks[0].decision);
  CHECK(ranks[0].decision->ranks == std::vector{0, 2});
  CHECK(ranks[2].decision == ranks[0].decision);
  ranks.enter(1);
  ranks.turns();
  REQUIRE(ranks[1].decision);
  CHECK(ranks[1].decision == ranks[0].decision);
}

TEST_CASE("a rank that stops before it has proposed is excluded") {
  for (const int stopped : {0, 1, 2}) {
    CAPTURE(stopped);
    Simulation ranks(3, seconds(10));
    for (int rank = 0; rank < 3; ++rank) ranks.enter(rank);
    for (int round = 0; round < 10; ++round) {
      for (int rank = 0; rank < 3; ++rank)
        if (rank != stopped) ranks.turn(rank);
      ranks.pass(seconds(5));
    }
    const int other = stopped == 0 ? 1 : 0;
    REQUIRE(ranks[other].decision);
    CHECK_FALSE(ranks[other].decision->has(stopped));
    CHECK(ranks[other].decision->ranks.size() == 2);
    CHECK(ranks[stopped == 2 ? 1 : 2].decision == ranks[other].decision);
    ranks.turns();  // it continues
    REQUIRE(ranks[stopped].decision);
    CHECK(ranks[stopped].decision == ranks[other].decision);
  }
}

TEST_CASE("a rank that stops after it has proposed what the others do is not excluded, and learns of the decision") {
  for (const int stopped : {0, 1, 2}) {
    CAPTURE(stopped);
    Simulation ranks(3, seconds(10));
    for (int rank = 0; rank < 3; ++rank) ranks.enter(rank);
    ranks.turn(stopped);
    for (int round = 0; round < 3; ++round)
      for (int rank = 0; rank < 3; ++rank)
        if (rank != stopped) ranks.turn(rank);
    ranks.pass(seconds(60));
    ranks.turns();
    for (int rank = 0; rank < 3; ++rank) {
      REQUIRE(ranks[rank].decision);
      CHECK(ranks[rank].decision->ranks == std::vector{0, 1, 2});
    }
  }
}

TEST_CASE("a rank that follows a proposal waits for the ranks in it that it does not know") {
  Simulation ranks(3, seconds(10));
  for (int rank = 0; rank < 3; ++rank) ranks.enter(rank);
  ranks.turn(0);  // knows all, and proposes them
  auto& inbox = ranks[1].inbox;
  const auto late = std::ranges::find(inbox, 2, &Simulation::InTransit::from);
  const auto join = *late;
  inbox.erase(late);
  ranks.turn(1);
  inbox.push_back(join);
  ranks.turns();
  for (int rank = 0; rank < 3; ++rank) {
    REQUIRE(ranks[rank].decision);
    CHECK(ranks[rank].decision->ranks == std::vector{0, 1, 2});
  }
}

/// The part of a rank in a scenario, in milliseconds.
struct Part {
  int enters = 0;
  int lost = 1 << 20;  ///< when it stops, which nobody notices
};

/// Lets ranks with a deadline of `limit` take turns at random, and checks that the surviving ranks decide the same.
void check_scenario(const std::vector<Part>& parts, const std::vector<int>& expected) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Simulation ranks(static_cast<int>(parts.size()), milliseconds(limit), milliseconds(3));
    std::mt19937 chance(seed);
    for (int now = 0; now < 5 * limit; ++now, ranks.pass(milliseconds(1))) {
      for (int rank = 0; rank < ranks.size(); ++rank) {
        const Part& part = parts[static_cast<std::size_t>(rank)];
        if (now == part.enters) ranks.enter(rank);
        if (now >= part.enters && now < part.lost && chance() % 3 == 0) ranks.turn(rank);
      }
    }
    const RankSubset* agreed = nullptr;
    for (int rank = 0; rank < ranks.size(); ++rank) {
      if (parts[static_cast<std::size_t>(rank)].lost < 5 * limit) continue;
      CAPTURE(rank);
      REQUIRE(ranks[rank].decision);
      if (agreed == nullptr) agreed = &*ranks[rank].decision;
      CHECK(ranks[rank].decision->ranks == agreed->ranks);
    }
    for (const int rank : expected) CHECK(agreed->has(rank));
  }
}

TEST_CASE("ranks that others exclude while some are lost in silence do not decide alone") {
  SUBCASE("one joins as the deadline of others is over") {
    check_scenario({{}, {}, {.lost = limit / 5}, {.enters = limit - 1}}, {0, 1});
  }
  SUBCASE("one joins after the deadline of others, one of which is lost after it has proposed") {
    check_scenario({{}, {.lost = limit * 3 / 2}, {.lost = limit / 5}, {.enters = limit * 6 / 5}}, {0});
  }
  SUBCASE("the same, and two others are left") {
    check_scenario({{}, {}, {.lost = limit * 3 / 2}, {.lost = limit / 5}, {.enters = limit * 6 / 5}}, {0, 1});
  }
}

TEST_CASE("a rank that waits for one that was lost, and whose message another one has, is not excluded") {
  for (int turns = 0; turns < 5; ++turns) {
    Simulation ranks(3, milliseconds(limit), milliseconds(3));
    for (int rank = 0; rank < 3; ++rank) ranks.enter(rank);
    std::erase_if(ranks[1].inbox, [](const auto& message) { return message.from == 2; });
    for (int now = 0; now < 4 * limit; ++now, ranks.pass(milliseconds(1)))
      for (const int rank : {0, 1})
        if (now % (turns + 1 + rank) == 0) ranks.turn(rank);
    for (const int rank : {0, 1}) {
      REQUIRE(ranks[rank].decision);
      CHECK(ranks[rank].decision->ranks == std::vector{0, 1});
    }
  }
}

}  // namespace
