// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <deque>
#include <memory>
#include <random>

#include "distx/mpi/detail/agreement.hpp"

// The agreement on the surviving ranks, among simulated ranks that end or stop at chosen moments.
namespace {

using distx::detail::mpi::Agreement;
using distx::detail::mpi::Survivors;
using std::chrono::seconds;

/// Ranks with a simulated clock and messages in order between each two.
class Simulation {
 public:
  Simulation(int size, distx::Timeout deadline) : deadline_(deadline), ranks_(static_cast<std::size_t>(size)) {}

  struct Rank {
    std::unique_ptr<Agreement> agreement{};
    std::deque<std::pair<int, Agreement::Message>> inbox{};
    int sends_left = 1 << 20;  ///< the rank ends in the send after these
    bool ended = false;
    std::optional<Survivors> decision{};
  };
  Rank& operator[](int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  void pass(seconds time) { now_ += time; }

  void enter(int rank) {
    const auto send = [this, rank](int to, const Agreement::Message& message) {
      Rank& self = (*this)[rank];
      self.ended = self.ended || self.sends_left-- == 0;
      if (!self.ended) (*this)[to].inbox.emplace_back(rank, message);
    };
    (*this)[rank].agreement = std::make_unique<Agreement>(rank, size(), 10 + rank, deadline_, now_, send);
  }
  /// Lets a rank receive its messages, unless `deaf`, and progress.
  void turn(int rank, bool deaf = false) {
    Rank& self = (*this)[rank];
    if (self.agreement == nullptr || self.ended || self.decision) return;
    std::vector<bool> ended;
    for (const Rank& each : ranks_) ended.push_back(each.ended);
    for (; !deaf && !self.inbox.empty() && !self.ended; self.inbox.pop_front())
      self.agreement->receive(self.inbox.front().first, self.inbox.front().second, now_);
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
  const Survivors* agreed = nullptr;
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

TEST_CASE("a rank that stops during the agreement is excluded, whether it leads or not") {
  for (const int stopped : {0, 1, 2}) {
    CAPTURE(stopped);
    Simulation ranks(3, seconds(10));
    for (int rank = 0; rank < 3; ++rank) ranks.enter(rank);
    if (stopped == 0) {
      ranks.turn(0);                                   // proposes
      for (const int rank : {1, 2}) ranks.turn(rank);  // accept
    }
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

}  // namespace
