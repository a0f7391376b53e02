// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include "stages.hpp"

namespace {

using GuardedTraining = distx::DataParallel<distx::ZeRO<distx::Dynamic>>;
using GuardedGroups = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Hybrid>;
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

/// Trains three steps, in the second of which rank 1 has a gradient of block1.layer4 that is not a number.
std::vector<toy::Ending> with_bad_gradient(const distx::DataParallelOptions& options) {
  return toy::endings(3, [&](distx::ThreadCommunicator& comm) {
    const auto parameters = stages::owned();
    GuardedTraining training(comm, parameters, distx::SGD{}, options);
    for (std::size_t step = 0; step < 3; ++step) {
      for (std::size_t p = parameters.size(); p-- > 0;) {
        const auto weights = training.unshard(parameters[p]);
        const auto gradient = training.gradient(parameters[p]);
        gradient[0] = step == 1 && p == 4 && comm.rank() == 1 ? not_a_number : 1;
        training.ready(parameters[p]);
      }
      training.step({.learning_rate = 0.01});
    }
  });
}

constexpr const char* changed_weight = "block0.layer2";

/// Trains four steps; before the third, something else changes what the last rank holds of a weight.
template <class Training>
std::vector<toy::Ending> with_changed_weight(int ranks, const distx::DataParallelOptions& options) {
  return toy::endings(ranks, [&](distx::ThreadCommunicator& comm) {
    const auto parameters = stages::owned();
    Training training(comm, parameters, distx::SGD{}, options);
    for (std::size_t step = 0; step < 4; ++step) {
      if (step == 2 && comm.rank() == comm.size() - 1)
        for (const auto& array : training.state().arrays)
          if (array.name == changed_weight)
            for (std::size_t i = 0; i < array.values.size(); ++i) static_cast<float*>(array.values.data())[i] += 1;
      stages::pass(training, parameters, 10 * step);
      training.step({.learning_rate = 0.01});
    }
  });
}

}  // namespace

TEST_CASE("a guarded step names the gradient that is not finite, and its rank") {
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const auto endings = with_bad_gradient({.stage = stage, .guard_every = 2});
    for (const auto& ending : endings) {
      CHECK(ending.kind == "not finite");
      CHECK(toy::says(ending.words, "the gradient of 'block1.layer4' is infinite or not a number on rank 1 in step 1"));
    }
    for (const std::uint64_t every : {0u, 3u})  // step 1 is not checked
      for (const auto& ending : with_bad_gradient({.stage = stage, .guard_every = every}))
        CHECK(ending.kind == "no error");
  }
}

// At stages 1 to 3 each weight has one owner in a group, which all other ranks of the group have it from.
TEST_CASE("a guarded step names the weight that differs between ranks") {
  for (const auto& ending : with_changed_weight<GuardedTraining>(3, {.stage = 0, .guard_every = 1})) {
    CHECK(ending.kind == "mismatch");
    CHECK(toy::says(ending.words, "the hash of the weights of 'block0.layer2' after step 2 differs: rank 0 has "));
  }
  for (const auto& ending : with_changed_weight<GuardedTraining>(3, {.stage = 0})) CHECK(ending.kind == "no error");
}

TEST_CASE("a guarded step compares the groups of Hybrid") {
  for (const int stage : {1, 2, 3}) {
    CAPTURE(stage);
    const auto endings = with_changed_weight<GuardedGroups>(4, {.stage = stage, .group_ranks = 2, .guard_every = 2});
    for (std::size_t rank = 0; rank < 4; ++rank) {
      CAPTURE(rank);
      CHECK(endings[rank].kind == "mismatch");
      const bool holds = stage < 3 || rank % 2 == 1;  // at stage 3, the other shard has none of it
      CHECK(
          toy::says(endings[rank].words, holds ? "'block0.layer2' after step 3 differs" : "in a shard of other ranks"));
    }
  }
}
