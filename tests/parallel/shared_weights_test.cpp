// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One copy of the weights for all ranks, below stage 3. The bits are checked by for_each_way.
#include <doctest/doctest.h>
#include <distx/comm/decorators/faulty.hpp>
#include <distx/comm/decorators/metered.hpp>
#include <distx/comm/decorators/throttled.hpp>

#include <algorithm>
#include <atomic>
#include <functional>

#include "stages.hpp"

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

TEST_CASE("no rank updates shared weights while another one reads them") {
  // Hybrid reduces in the background: without it the reduction itself may wait for the other rank's call.
  using Training = distx::DataParallel<distx::ZeRO<1>, distx::Hybrid>;
  std::atomic<bool> updated{false};
  toy::on_ranks(2, [&](Comm& comm) {
    const auto parameters = stages::owned();
    Training training(comm, parameters, distx::SGD{}, {.share_weights = true, .group_ranks = 2});
    for (const auto& parameter : parameters) {
      std::ranges::fill(training.gradient(parameter), 1.0f);
      training.ready(parameter);
    }
    if (comm.rank() == 1) {  // as a layer that computes the gradient of its input last
      distx::detail::wait_until(100ms, [&] { return updated.load(); }, [] { return false; });
      CHECK_FALSE(updated.load());
    }
    training.reduce_gradients();
    updated = true;
    training.update_weights({.learning_rate = 1});
    training.gather_weights();
    for (std::size_t p = 0; p < parameters.size(); ++p)
      CHECK(parameters[p].value()[0] == static_cast<float>(toy::first_weight(p, 0)) - 1);
  });
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

/// Checks that each rank has a copy of the weights, with the same bits as without `.share_weights`.
template <class C>
void check_copies(int stage, const std::function<C(Comm&)>& wrap) {
  const void* seen[2] = {};
  toy::on_ranks(2, [&](Comm& comm) {
    const auto expected = stages::train(comm, {{.stage = stage}});
    C wrapped = wrap(comm);
    CHECK(toy::same_bits(stages::train(wrapped, {{.stage = stage, .share_weights = true}}), expected));
    const auto parameters = stages::owned();
    const stages::Training training(wrapped, parameters, distx::SGD{}, {.stage = stage, .share_weights = true});
    seen[comm.rank()] = parameters[2].value().data();
    distx::barrier(comm);  // each copy exists until both have been seen
  });
  CHECK(seen[0] != seen[1]);
}

TEST_CASE("communicators without common memory keep a copy of the weights for each rank, with the same bits") {
  for (const int stage : {0, 1, 2})
    check_copies<distx::Throttled<Comm>>(stage, [](Comm& comm) { return distx::Throttled<Comm>(comm.share(), {}); });
}

TEST_CASE("at stage 0, ranks whose communicator passes no operands keep copies") {
  check_copies<distx::Faulty<Comm>>(0, [](Comm& comm) { return distx::Faulty<Comm>(comm.share(), {}); });
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
