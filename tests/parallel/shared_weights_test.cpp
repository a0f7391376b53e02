// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One copy of the weights for all ranks, below stage 3. The bits are checked by for_each_way.
#include <doctest/doctest.h>
#include <distx/comm/decorators/faulty.hpp>
#include <distx/comm/decorators/metered.hpp>

#include <atomic>

#include "stages.hpp"

using namespace distx::literals;
using namespace std::chrono_literals;

namespace {

using Comm = distx::ThreadCommunicator;
using toy::says;

TEST_CASE("shared weights are one copy for all ranks, whole at all times, and a step sends none of them") {
  for (const int stage : {0, 1, 2})
    for (const bool overlap : {false, true})
      for (const bool shares : {false, true}) {
        CAPTURE(stage);
        CAPTURE(overlap);
        CAPTURE(shares);
        const void* seen[3] = {};
        toy::on_ranks(3, [&](Comm& comm) {
          distx::Metered<Comm> metered(comm.share());
          const auto parameters = stages::owned();
          stages::Training training(metered, parameters, distx::SGD{},
                                    {.overlap = overlap, .stage = stage, .share_weights = shares});
          CHECK(training.value(parameters[2])[7] == static_cast<float>(toy::first_weight(2, 7)));
          seen[comm.rank()] = parameters[2].value().data();
          stages::pass(training, parameters, 3);
          const auto before = metered.ledger();
          training.step({.learning_rate = 1});
          const auto ledger = metered.ledger() - before;
          CHECK((ledger["all_gather"].sent_bytes > 4096) == (stage > 0 && !shares));  // the rates are compared
          CHECK(ledger["barrier"].calls == (shares ? 2 : 0));
          const auto value = parameters[2].value();
          CHECK(std::abs(value[19999] - static_cast<float>(toy::target(2, 19999, 3))) < 1e-5f);
          distx::barrier(comm);  // each copy exists until all have been seen
        });
        CHECK((seen[0] == seen[1]) == shares);
        CHECK((seen[1] == seen[2]) == shares);
      }
}

TEST_CASE("no rank changes shared weights while another one reads them") {
  for (const int stage : {0, 1, 2})
    for (const bool in_parts : {false, true}) {
      CAPTURE(stage);
      CAPTURE(in_parts);
      std::atomic<bool> updated{false};
      toy::on_ranks(2, [&](Comm& comm) {
        const auto parameters = stages::owned();
        stages::Training training(comm, parameters, distx::SGD{}, {.stage = stage, .share_weights = true});
        for (const auto& parameter : parameters) {
          const auto gradient = training.gradient(parameter);
          std::fill(gradient.begin(), gradient.end(), 1.0f);
          training.ready(parameter);
        }
        if (comm.rank() == 1) {  // as a layer that computes the gradient of its input last
          distx::detail::wait_until(100ms, [&] { return updated.load(); }, [] { return false; });
          CHECK_FALSE(updated.load());
          for (std::size_t p = 0; p < parameters.size(); ++p)
            CHECK(training.value(parameters[p])[0] == static_cast<float>(toy::first_weight(p, 0)));
        }
        if (in_parts) {
          training.reduce();
          for (const auto& segment : training.owned())
            for (float& x : segment.weights<float>()) x -= 1;
          updated = true;
          training.gather();
        } else {
          training.step({.learning_rate = 1});
          updated = true;
        }
        std::size_t wrong = 0;
        for (std::size_t p = 0; p < parameters.size(); ++p) {
          const auto value = training.value(parameters[p]);
          for (std::size_t i = 0; i < value.size(); ++i)
            if (value[i] != static_cast<float>(toy::first_weight(p, i)) - 1) ++wrong;
        }
        CHECK(wrong == 0);
      });
    }
}

TEST_CASE("shared weights are lost with a training that is not released, and own copies after release") {
  for (const bool releases : {false, true})
    toy::on_ranks(2, [&](Comm& comm) {
      const auto parameters = stages::owned();
      {
        stages::Training training(comm, parameters, distx::SGD{}, {.stage = 1, .share_weights = true});
        stages::pass(training, parameters, 1);
        training.step({.learning_rate = 1});
        if (releases) training.release();
      }
      if (!releases) {
        CHECK_THROWS_AS(static_cast<void>(parameters[0].value()), distx::InvalidState);
        return;
      }
      const auto value = parameters[2].value();
      value[19999] = static_cast<float>(comm.rank());  // memory of this rank
      distx::barrier(comm);
      CHECK(value[19999] == static_cast<float>(comm.rank()));
    });
}

TEST_CASE("communicators without common memory keep a copy of the weights for each rank, with the same bits") {
  for (const int stage : {0, 1, 2})
    toy::on_ranks(2, [&](Comm& comm) {
      const auto expected = stages::train(comm, {{.stage = stage}});
      distx::Faulty<Comm> faulty(comm.share(), {});  // shares memory, but does not pass operands
      CHECK(toy::same_bits(stages::train(faulty, {{.stage = stage, .share_weights = true}}), expected));
    });
}

TEST_CASE("ranks that share weights and ranks that do not do not train together") {
  for (const int stage : {0, 2})
    for (const auto& ending : toy::endings(2, [&](Comm& comm) {
           const auto parameters = stages::owned();
           stages::Training training(comm, parameters, distx::SGD{},
                                     {.stage = stage, .share_weights = comm.rank() == 0});
         })) {
      CHECK(ending.kind == "mismatch");
      CHECK(says(ending.words, ".share_weights differs: rank 0 has true; rank 1 has false"));
    }
}

}  // namespace
