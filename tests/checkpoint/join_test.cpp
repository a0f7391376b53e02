// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <distx/comm/decorators/faulty.hpp>
#include <distx/comm/point_to_point.hpp>

#include <atomic>

#include "restarts.hpp"

using namespace std::chrono_literals;
using model::last_step;
using model::Of;
using model::options_of;
using model::Replicated;
using model::restart;
using model::Restarts;
using model::Trainer;
using model::WholeState;

namespace {

/// How a training on more ranks has gone on.
struct Growth {
  WholeState grown, ended;  // after ranks have joined, and at the end
  std::atomic<bool> same_step{true};
};

/// Trains on the first ranks for some steps, and then on all. A rank that joins makes a training with other weights.
template <class Training, class T, class Optimizer>
void grow(Growth& growth, int members, int ranks, int stage, std::uint64_t at) {
  distx::spawn(distx::threads(ranks, 20s), [&](distx::ThreadConnector& connector) {
    distx::ThreadCommunicator all(connector, 20s);
    const bool joins = all.rank() >= members;
    auto part = all.split(joins ? 1 : 0, 0);
    std::optional<Trainer<Training, T>> trainer;
    std::uint64_t step = 0;
    if (joins) {
      trainer.emplace(all, Optimizer{}, options_of(stage), 7.0f);
    } else {
      trainer.emplace(part, Optimizer{}, options_of(stage));
      for (; step < at; ++step) trainer->step(step);
      if (trainer->recover(all) != at) growth.same_step = false;
    }
    distx::broadcast(all, step, 0);
    growth.grown.add(trainer->training().state());
    for (; step < last_step; ++step) trainer->step(step);
    growth.ended.add(trainer->training().state());
    if (trainer->recover(all) != last_step) growth.same_step = false;
  });
}

}  // namespace

TEST_CASE_TEMPLATE("ranks that join, and those that they join, have the state of a restart on all of them", Case,
                   Of<Replicated, float, distx::AdamW, 1, 2, 3>, Of<Replicated, float, model::Signs, 2>,
                   Of<model::Half, distx::bfloat16, distx::AdamW, 2>) {
  using Training = typename Case::Training;
  using T = typename Case::T;
  using Optimizer = typename Case::Optimizer;
  for (const int members : Case::ranks)
    for (const int ranks : {members + 1, members + 2})
      for (int stage = 0; stage < 4; ++stage) {
        Restarts restarts;
        restart<Training, T, Optimizer>(restarts, members, ranks, stage);
        for (std::uint64_t at = 0; at <= last_step; ++at) {
          INFO(members, " ranks, later ", ranks, ", stage ", stage, ", step ", at);
          Growth growth;
          grow<Training, T, Optimizer>(growth, members, ranks, stage, at);
          CHECK(growth.same_step);
          CHECK(growth.grown == restarts.loaded[at]);
          CHECK(growth.ended == restarts.ended[at]);
        }
      }
}

TEST_CASE("a rank that has joined keeps copies: any rank may be lost afterwards, also rank 0 and the one that joined") {
  constexpr int ranks = 3, members = 2;
  for (int stage = 0; stage < 4; ++stage)
    for (int victim = 0; victim < ranks; ++victim) {
      INFO("stage ", stage, ", rank ", victim, " is lost");
      WholeState before, after;
      CHECK_THROWS_AS(distx::spawn(distx::threads(ranks, 20s),
                                   [&](distx::ThreadConnector& connector) {
                                     distx::ThreadCommunicator all(connector, 20s);
                                     const bool joins = all.rank() >= members;
                                     auto part = all.split(joins ? 1 : 0, 0);
                                     std::optional<Trainer<Replicated>> trainer;
                                     if (joins) {
                                       trainer.emplace(all, distx::AdamW{}, options_of(stage), 7.0f);
                                     } else {
                                       trainer.emplace(part, distx::AdamW{}, options_of(stage));
                                       trainer->step(0);
                                       (void)trainer->recover(all);
                                     }
                                     trainer->step(1);
                                     before.add(trainer->training().state());
                                     distx::barrier(all);
                                     if (all.rank() == victim) throw std::runtime_error("lost");
                                     auto two = connector.shrink(20s);
                                     distx::ThreadCommunicator left(two, 20s);
                                     CHECK(trainer->recover(left) == 2);
                                     after.add(trainer->training().state());
                                   }),
                      distx::RankFailure);
      CHECK(before == after);
    }
}

TEST_CASE("a rank that joins, or one that it joins, may end in any call: the others continue from the same step") {
  constexpr int members = 3;
  constexpr std::uint64_t at = 2;
  for (int stage = 0; stage < 4; ++stage)
    for (const int victim :
         {members, 1}) {  // the rank that joins ends in any case: a rank next to it would be a second
      const int left = victim == members ? members : members - 1;
      Restarts restarts;
      restart<Replicated, float, distx::AdamW>(restarts, members, left, stage);
      bool is_over = false;
      for (std::uint64_t call = 0; !is_over; ++call) {
        INFO("stage ", stage, ", rank ", victim, " ends in call ", call);
        REQUIRE(call < 200);
        std::atomic<int> survivors{0}, finished{0};
        WholeState recovered, ended;
        CHECK_THROWS_AS(distx::spawn(distx::threads(members + 1, 20s),
                                     [&](distx::ThreadConnector& connector) {
                                       distx::ThreadCommunicator inner(connector, 20s);
                                       const bool joins = inner.rank() >= members;
                                       auto part = inner.split(joins ? 1 : 0, 0);
                                       distx::Faulty all(
                                           std::move(inner),
                                           {{.kind = distx::Fault::Kind::error, .rank = victim, .first = call}});
                                       if (joins) {
                                         Trainer<Replicated> trainer(all, distx::AdamW{}, options_of(stage), 7.0f);
                                         ++finished;
                                         throw distx::RevokedError("this rank ends");
                                       }
                                       Trainer<Replicated> trainer(part, distx::AdamW{}, options_of(stage));
                                       std::uint64_t step = 0;
                                       for (; step < at; ++step) trainer.step(step);
                                       try {
                                         (void)trainer.recover(all);
                                         ++finished;
                                       } catch (const distx::Error& error) {
                                         if (!distx::is_rank_loss(error)) throw;
                                       }
                                       if (all.rank() == victim && finished > 0)
                                         throw distx::RevokedError("this rank ends");
                                       auto fewer = connector.shrink(20s);
                                       distx::ThreadCommunicator others(fewer, 20s);
                                       CHECK(trainer.recover(others) == at);
                                       ++survivors;
                                       recovered.add(trainer.training().state());
                                       for (; step < last_step; ++step) trainer.step(step);
                                       ended.add(trainer.training().state());
                                     }),
                        distx::RankFailure);
        is_over = finished == members + 1;
        CHECK(survivors == left);
        CHECK(recovered == restarts.loaded[at]);
        CHECK(ended == restarts.ended[at]);
      }
    }
}

TEST_CASE("a rank that joins with other parameters, stage or policies makes every rank throw MismatchError") {
  const auto check = [](auto join, const std::string& expected) {
    std::atomic<int> thrown{0};
    distx::spawn(distx::threads(3, 20s), [&](distx::ThreadConnector& connector) {
      distx::ThreadCommunicator all(connector, 20s);
      auto part = all.split(all.rank() == 2 ? 1 : 0, 0);
      try {
        if (all.rank() == 2) return join(all);
        Trainer<Replicated> trainer(part, distx::AdamW{}, options_of(1));
        trainer.step(0);
        (void)trainer.recover(all);
      } catch (const distx::MismatchError& error) {
        const std::string words = error.what();
        INFO(words);
        CHECK(words.find(expected) != std::string::npos);
        ++thrown;
      }
    });
    CHECK(thrown == 3);
  };
  check([](auto& all) { Trainer<Replicated> trainer(all, distx::AdamW{}, options_of(2)); },
        "the list of policies differs: rank 0 has ZeRO<1>, Replicate; rank 2 has ZeRO<2>, Replicate");
  check([](auto& all) { Trainer<Replicated> trainer(all, model::Signs{}, options_of(1)); }, "optimizer");
  check([](auto& all) { Trainer<model::Any> trainer(all, distx::AdamW{}, options_of(1)); }, "Replicate");
  check(
      [](auto& all) {
        std::vector<distx::Parameter<float>> parameters;
        parameters.emplace_back("other", std::size_t{10});
        Replicated training(all, parameters, distx::AdamW{}, options_of(1));
      },
      "other");
}
