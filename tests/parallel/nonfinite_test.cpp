// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/comm/point_to_point.hpp>

#include <array>
#include <functional>
#include <limits>

#include "mesh_model.hpp"
#include "stages.hpp"

namespace nonfinite {

using toy::says;
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

/// How a call of each rank ended, and whether its error is a rank loss.
struct LossEnding {
  toy::Ending ending;
  bool rank_loss = false;
};

/// Runs `f(comm)` on every rank, and then an all-reduce on the same communicator; returns how both ended.
std::vector<std::array<LossEnding, 2>> losses(int ranks, const std::function<void(distx::ThreadCommunicator&)>& f) {
  std::vector<std::array<LossEnding, 2>> all(static_cast<std::size_t>(ranks));
  toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    const auto ended = [](auto&& call) {
      LossEnding found;
      found.ending = toy::ending_of([&] {
        try {
          call();
        } catch (const distx::Error& error) {
          found.rank_loss = distx::is_rank_loss(error);
          throw;
        }
      });
      return found;
    };
    auto& mine = all[static_cast<std::size_t>(comm.rank())];
    mine[0] = ended([&] { f(comm); });
    mine[1] = ended([&] { distx::barrier(comm); });
  });
  return all;
}

/// A batch: its loss, and the factor of the first element of one parameter's gradient.
struct BadBatch {
  double loss = 1;
  float gradient = 1;
};

/// Makes a step in one of the ways that a user can.
template <class Training, class Parameters>
void make_step(Training& training, Parameters& parameters, std::size_t sample, const BadBatch& batch, bool in_parts) {
  constexpr std::size_t micro_batches = Training::accumulates ? 2 : 1;
  for (std::size_t k = 0; k < micro_batches; ++k) {
    if constexpr (Training::accumulates) static_cast<void>(training.micro_batch({.index = k, .count = micro_batches}));
    for (std::size_t p = parameters.size(); p-- > 0;) {
      const auto weights = training.unshard(parameters[p]);
      const auto value = training.value(parameters[p]);
      const auto gradient = training.gradient(parameters[p]);
      for (std::size_t i = 0; i < value.size(); ++i)
        gradient[i] += value[i] - static_cast<float>(toy::target(p, i, sample));
      if (p == 4 && k == 0) gradient[0] *= batch.gradient;
      training.ready(parameters[p]);
    }
  }
  if (!in_parts) return training.step({.learning_rate = 0.01, .loss = batch.loss});
  training.reduce_gradients();
  training.update_weights({.learning_rate = 0.01, .loss = batch.loss});
  training.gather_weights();
}

/// Returns the weights after four good steps of Adam and, if `bad`, others between them in which one rank has a value
/// that is not finite.
template <class... Policies>
std::vector<float> trained(distx::ThreadCommunicator& comm, const distx::DataParallelOptions& options, bool in_parts,
                           bool bad) {
  auto parameters = stages::owned();
  distx::DataParallel<distx::ZeRO<distx::Dynamic>, Policies...> training(comm, parameters, distx::AdamW{}, options);
  const int last = comm.size() - 1;
  std::uint64_t skipped = 0;
  for (std::size_t step = 0; step < 4; ++step) {
    const std::size_t sample = 10 * step + static_cast<std::size_t>(comm.rank());
    if (bad)
      for (const BadBatch& batch : {BadBatch{.loss = infinity}, BadBatch{.gradient = not_a_number},
                                    BadBatch{.loss = not_a_number, .gradient = not_a_number}}) {
        make_step(training, parameters, sample + 1000, comm.rank() == last ? batch : BadBatch{}, in_parts);
        CHECK(training.skipped_steps() == ++skipped);
      }
    make_step(training, parameters, sample, {}, in_parts);
  }
  CHECK(training.skipped_steps() == skipped);
  CHECK(training.state().counters.updates.front().second == 4);
  std::vector<float> all;
  training.for_each_full_weight([&](const std::string&, distx::Span<const distx::AnyElement> values) {
    const auto* const first = static_cast<const float*>(values.data());
    all.insert(all.end(), first, first + values.size());
  });
  return all;
}

/// Compares a training whose bad steps are skipped with one that never had them, in all ways that options allow.
template <class... Policies>
void check_skipping(std::initializer_list<int> some_stages, int ranks, int group_ranks = 0) {
  for (const int stage : some_stages)
    for (const bool overlap : {false, true})
      for (const bool in_parts : {false, true})
        for (const bool clips : {false, true}) {
          CAPTURE(stage);
          CAPTURE(overlap);
          CAPTURE(in_parts);
          CAPTURE(clips);
          distx::DataParallelOptions options{
              .bucket_bytes = 4096, .overlap = overlap, .stage = stage, .group_ranks = group_ranks};
          if (clips) options.clip_norm = 1;
          options.skip_nonfinite = true;
          toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
            const auto expected = trained<Policies...>(comm, options, in_parts, false);
            CHECK(toy::same_bits(trained<Policies...>(comm, options, in_parts, true), expected));
          });
        }
}

TEST_CASE("a loss or gradient of one rank that is not finite throws NonFiniteError on every rank") {
  struct Case {
    BadBatch batch;
    distx::DataParallelOptions options;
    const char* words;
  };
  const Case cases[] = {
      {{.loss = infinity}, {}, "the loss of rank 1 is inf"},
      {{.loss = not_a_number}, {.clip_norm = 1}, "the loss of rank 1 is nan"},
      {{.gradient = not_a_number}, {.clip_norm = 1}, "the gradient of 'block1.layer4' is infinite or not a number"},
      {{.gradient = not_a_number}, {.guard_every = 1}, "is infinite or not a number on rank 1 in step 1"},
  };
  for (const auto& [batch, some, words] : cases)
    for (const int stage : {0, 1, 2, 3})
      for (const bool overlap : {false, true})
        for (const bool in_parts : {false, true}) {
          CAPTURE(words);
          CAPTURE(stage);
          CAPTURE(overlap);
          CAPTURE(in_parts);
          auto options = some;
          options.stage = stage;
          options.overlap = overlap;
          for (const auto& [first, later] : losses(3, [&](distx::ThreadCommunicator& comm) {
                 auto parameters = stages::owned();
                 stages::Training training(comm, parameters, distx::SGD{}, options);
                 for (std::size_t step = 0; step < 3; ++step)
                   make_step(training, parameters, step, step == 1 && comm.rank() == 1 ? batch : BadBatch{}, in_parts);
               })) {
            CHECK_MESSAGE(first.ending.kind == "not finite", first.ending.words);
            CHECK_MESSAGE(says(first.ending.words, words), first.ending.words);
            CHECK(later.ending.kind != "no error");
            CHECK_FALSE(first.rank_loss);
            CHECK_FALSE(later.rank_loss);
          }
        }
}

TEST_CASE("an error of one rank's own calls is not a rank loss on any rank, and one that follows from a lost rank is") {
  using Training = distx::DataParallel<distx::ZeRO<1>>;
  struct Case {
    std::function<void(Training&, std::vector<distx::Parameter<float>>&)> wrong;
    bool rank_loss;
  };
  const std::vector<Case> cases = {
      {[](auto& training, auto&) { training.step({.learning_rate = not_a_number}); }, false},
      {[](auto& training, auto&) { training.gather_weights(); }, false},
      {[](auto& training, auto& parameters) { training.ready(parameters[0]); }, false},
      {[](auto& training, auto&) { training.for_each_full_weight([](auto&&...) {}); }, false},
      {[](auto&, auto&) { throw distx::TimeoutError("a loader is stuck", {}, 0, false); }, false},
      {[](auto&, auto&) { throw distx::RevokedError("another rank's data are wrong", {}, 0, false); }, false},
      {[](auto&, auto&) { throw distx::RankFailure("another rank is lost", 0); }, true},
      {[](auto&, auto&) { throw distx::TimeoutError("another rank did not join"); }, true},
      {[](auto&, auto&) { throw distx::RevokedError("another rank is lost"); }, true},
  };
  for (std::size_t k = 0; k < cases.size(); ++k) {
    CAPTURE(k);
    const auto found = losses(3, [&](distx::ThreadCommunicator& comm) {
      auto parameters = stages::owned();
      Training training(comm, parameters, distx::SGD{}, {.bucket_bytes = 0});
      for (int step = 0; step < 3; ++step) {
        for (const auto& parameter : parameters) {
          static_cast<void>(training.gradient(parameter));
          training.ready(parameter);
        }
        if (step == 1 && comm.rank() == 1)
          distx::detail::revoke_on_exception([&] { cases[k].wrong(training, parameters); },
                                             [&](const auto& reason) { comm.revoke(reason.published()); });
        training.step({.learning_rate = 0.1});
      }
    });
    for (const auto& [first, later] : found) {
      CAPTURE(first.ending.words);
      CHECK(first.ending.kind != "no error");
      CHECK((first.rank_loss == cases[k].rank_loss || &first == &found[1][0]));
      CHECK(later.rank_loss == cases[k].rank_loss);
    }
  }
}

TEST_CASE("after an error in a step, every later call names it as the end of the training") {
  for (const int ranks : {1, 2})
    for (const int stage : {0, 3})
      toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
        auto parameters = stages::owned();
        stages::Training training(comm, parameters, distx::SGD{}, {.stage = stage, .clip_norm = 1});
        CHECK_THROWS_AS(make_step(training, parameters, 0, {.loss = infinity}, false), distx::NonFiniteError);
        const auto check = [&](auto&& call) {
          const auto ending = toy::ending_of(call);
          CHECK(ending.kind == "state");
          CHECK_MESSAGE(says(ending.words, "this training has ended because of an error in step 0: "), ending.words);
          CHECK_MESSAGE(says(ending.words, "the loss of rank "), ending.words);
          CHECK_FALSE(says(ending.words, ".uses"));
        };
        check([&] { static_cast<void>(training.gradient(parameters[0])); });
        check([&] { static_cast<void>(parameters[0].gradient()); });
        check([&] { training.ready(parameters[0]); });
        check([&] { training.step({.learning_rate = 0.1}); });
        check([&] { training.reduce_gradients(); });
        check([&] { static_cast<void>(training.state()); });
        check([&] { training.release(); });
        if (stage == 3) check([&] { static_cast<void>(training.unshard(parameters[0])); });
      });
}

TEST_CASE("after the loss of a rank, gradients of the training and of its parameters throw RevokedError") {
  toy::on_ranks(2, [&](distx::ThreadCommunicator& comm) {
    auto parameters = stages::owned();
    stages::Training training(comm, parameters, distx::SGD{}, {.stage = 1});
    distx::barrier(comm);
    if (comm.rank() == 1) comm.revoke("another rank is lost");
    CHECK_THROWS_AS(make_step(training, parameters, 0, {}, false), distx::RevokedError);
    CHECK_THROWS_AS(static_cast<void>(training.gradient(parameters[0])), distx::RevokedError);
    CHECK_THROWS_AS(static_cast<void>(parameters[0].gradient()), distx::RevokedError);
  });
}

TEST_CASE("a step that is skipped leaves weights, optimizer state and its step number unchanged, at every stage") {
  check_skipping<>({0, 1, 2, 3}, 3);
  check_skipping<>({0, 3}, 1);
}
TEST_CASE("steps of accumulated gradients and of Hybrid groups are skipped as well") {
  check_skipping<distx::Accumulate<distx::Local>>({0, 1}, 2);
  check_skipping<distx::Accumulate<distx::Sharded>>({1, 2, 3}, 2);
  check_skipping<distx::Hybrid>({1, 2, 3}, 4, 2);
}

TEST_CASE("losses that are not finite are skipped where losses are scaled, and the scale is halved") {
  using Training = distx::DataParallel<distx::ZeRO<1>, distx::Precision<distx::float16>>;
  toy::on_ranks(2, [](distx::ThreadCommunicator& comm) {
    std::vector<distx::Parameter<distx::float16>> parameters;
    parameters.emplace_back("w", std::size_t{10});
    Training training(comm, parameters, distx::SGD{}, {.loss_scale = 1024.0, .skip_nonfinite = true});
    for (const double loss : {1.0, infinity, 1.0}) {
      training.gradient(parameters[0])[0] = distx::float16(1.0f);
      training.ready(parameters[0]);
      training.step({.learning_rate = 0.1, .loss = comm.rank() == 1 ? loss : 1});
    }
    CHECK(training.skipped_steps() == 1);
    CHECK(training.loss_scale() == 512);
  });
}

TEST_CASE("with skip_nonfinite a guarded step skips a gradient, and still compares the weights") {
  toy::on_ranks(2, [](distx::ThreadCommunicator& comm) {
    auto parameters = stages::owned();
    stages::Training training(comm, parameters, distx::SGD{}, {.stage = 0, .skip_nonfinite = true, .guard_every = 1});
    make_step(training, parameters, 0, {.gradient = comm.rank() == 1 ? not_a_number : 1}, false);
    make_step(training, parameters, 1, {}, false);
    CHECK(training.skipped_steps() == 1);
  });
}

TEST_CASE("skip_nonfinite that differs between ranks is an error on every rank") {
  for (const auto& ending : toy::endings(2, [](distx::ThreadCommunicator& comm) {
         const auto parameters = stages::owned();
         stages::Training(comm, parameters, distx::SGD{}, {.stage = 1, .skip_nonfinite = comm.rank() == 1});
       })) {
    CHECK(ending.kind == "mismatch");
    CHECK(says(ending.words, ".skip_nonfinite differs: rank 0 has false; rank 1 has true"));
  }
}

TEST_CASE("a loss that is not finite on one rank of a mesh is skipped, or throws NonFiniteError, on every rank") {
  using mesh_model::Grid, mesh_model::Data, mesh_model::Model;
  using Split = distx::Shard<1, Model>;
  for (const bool skips : {false, true})
    for (const bool in_parts : {false, true}) {
      CAPTURE(skips);
      CAPTURE(in_parts);
      for (const auto& ending : toy::endings(4, [&](distx::ThreadCommunicator& comm) {
             const Grid mesh(comm, {2, 2});
             const distx::TensorParameter<float, 2, Grid, distx::Layout<Split>> weight(
                 "weight", mesh, {5, 2}, [](const auto&) { return 1.0f; });
             distx::MeshParallel<Data, distx::ZeRO<1>> training(mesh, distx::TensorParameterList<>().add(weight),
                                                                distx::SGD{},
                                                                {.clip_norm = 100, .skip_nonfinite = skips});
             for (int step = 0; step < 4; ++step) {
               training.ready(weight, distx::generate<float, Split>(mesh, {5, 2}, [](const auto&) { return 1.0f; }));
               const distx::StepOptions options{.learning_rate = 1,
                                                .loss = step == 1 && comm.rank() == 2 ? infinity : 1};
               if (in_parts) {
                 training.reduce_gradients();
                 training.update_weights(options);
                 training.gather_weights();
               } else {
                 training.step(options);
               }
             }
             CHECK(training.skipped_steps() == 1);
             for (const float each : weight.local()) CHECK(each == -2);
           })) {
        CAPTURE(ending.words);
        CHECK(ending.kind == (skips ? "no error" : "not finite"));
      }
    }
}

}  // namespace nonfinite
