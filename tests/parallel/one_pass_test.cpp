// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A step that averages gradients and updates weights in one pass has the bits of one that stores the averages.
#include <doctest/doctest.h>
#include <distx/optim/lamb.hpp>

#include <atomic>
#include <thread>

#include "one_pass.hpp"

namespace one_pass {

namespace {

using namespace distx::literals;
using distx::Accumulate, distx::Dynamic, distx::Local, distx::Precision, distx::Sharded, distx::ZeRO;

struct Way {
  distx::DataParallelOptions options{};
  std::size_t micro_batches = 1;
  bool in_parts = false;
  bool unused = false;  // one parameter has no gradient on any rank
  bool uneven = false;  // the last rank has no batch
};

struct Result {
  std::vector<std::byte> weights{};
  Counts counts{};
};

/// Trains three steps and returns all weights, and how often gradients were consumed in place on rank 0.
template <class T, class... Policies, class Optimizer>
Result train(int ranks, bool passes, const Optimizer& optimizer, const Way& way) {
  Result result;
  toy::on_ranks(ranks, [&](distx::ThreadCommunicator& inner) {
    Counts counts;
    Watched<distx::ThreadCommunicator> comm(inner.share(), passes, counts);
    Model<T> model;
    distx::DataParallel<Policies...> training(comm, model.parameters, optimizer, way.options);
    for (std::size_t step = 0; step < 3; ++step) {
      const bool has_batch = !way.uneven || comm.rank() + 1 < comm.size();
      if (way.uneven) (void)training.announce_batch(has_batch);
      for (std::size_t micro = 0; micro < way.micro_batches && has_batch; ++micro) {
        if constexpr ((std::same_as<Policies, Accumulate<Local>> || ...) ||
                      (std::same_as<Policies, Accumulate<Sharded>> || ...))
          static_cast<void>(training.micro_batch({.index = micro, .count = way.micro_batches}));
        model.pass(training, 10 * step + 3 * micro + static_cast<std::size_t>(comm.rank()), way.unused);
      }
      if (way.in_parts) {
        training.reduce_gradients();
        training.update_weights({.learning_rate = 0.01});
        training.gather_weights();
      } else {
        training.step({.learning_rate = 0.01});
      }
    }
    auto weights = model.weights(training);
    if (comm.rank() == 0) result = {std::move(weights), counts};
  });
  return result;
}

/// Checks that one pass changes no bit, and whether it is taken.
template <class T, class... Policies, class Optimizer>
void check_same(int ranks, const Optimizer& optimizer, const Way& way, bool taken) {
  const Result stored = train<T, Policies...>(ranks, false, optimizer, way);
  const Result passed = train<T, Policies...>(ranks, true, optimizer, way);
  CHECK(stored.weights == passed.weights);
  CHECK(stored.counts.asked == 0);
  CHECK((passed.counts.consumed > 0) == taken);
}

}  // namespace

TEST_CASE("one pass gives the bits of a reduction and an update, at every stage and number of ranks") {
  for (const int ranks : {1, 2, 3, 4})
    for (const int stage : {0, 1, 2, 3})
      for (const bool overlap : {false, true})
        for (const std::size_t bytes : {40_KiB, distx::unlimited}) {
          CAPTURE(ranks);
          CAPTURE(stage);
          CAPTURE(overlap);
          CAPTURE(bytes);
          const Way way{{.bucket_bytes = bytes, .overlap = overlap, .stage = stage}};
          const bool hides = overlap && std::thread::hardware_concurrency() > static_cast<unsigned>(ranks);
          const bool taken = ranks > 1 && stage > 0 && (!hides || bytes == distx::unlimited);
          check_same<float, ZeRO<Dynamic>>(ranks, distx::AdamW{.weight_decay = 0.125}, way, taken);
          check_same<float, ZeRO<Dynamic>>(ranks, distx::SGD{.momentum = 0.9, .nesterov = true}, way, taken);
        }
}

TEST_CASE("one pass serves doubles, lanes of every width, and parameters without a gradient") {
  check_same<double, ZeRO<2>>(3, distx::AdamW{}, {}, true);
  const std::size_t widest = distx::detail::lane_bytes();
  const Result expected = train<float, ZeRO<1>>(3, true, distx::AdamW{}, {});
  for (const std::size_t bytes : {std::size_t{16}, std::size_t{32}}) {
    if (bytes >= widest) continue;
    CAPTURE(bytes);
    distx::detail::lane_bytes() = bytes;
    CHECK(train<float, ZeRO<1>>(3, true, distx::AdamW{}, {}).weights == expected.weights);
    distx::detail::lane_bytes() = widest;
  }
  check_same<float, ZeRO<2>>(3, distx::AdamW{}, {.options = {.allow_unused = true}, .unused = true}, true);
}

TEST_CASE("one pass follows local accumulation; gradients that are accumulated in shards are stored") {
  check_same<float, ZeRO<1>, Accumulate<Local>>(3, distx::AdamW{}, {.micro_batches = 3}, true);
  check_same<float, ZeRO<2>, Accumulate<Sharded>>(3, distx::AdamW{}, {.micro_batches = 3}, false);
  check_same<float, ZeRO<2>, Accumulate<Sharded>>(3, distx::AdamW{}, {.micro_batches = 1}, true);
}

TEST_CASE("ranks without a batch take part in one pass; a weighted average is stored") {
  for (const int stage : {1, 2, 3}) {
    CAPTURE(stage);
    check_same<float, ZeRO<Dynamic>>(3, distx::AdamW{}, {.options = {.stage = stage}, .uneven = true}, true);
    check_same<float, ZeRO<Dynamic>>(3, distx::AdamW{},
                                     {.options = {.stage = stage, .average_over_active = true}, .uneven = true}, false);
  }
}

TEST_CASE("gradients are stored where a step needs them whole, converted, or for an optimizer of norms") {
  check_same<float, ZeRO<1>>(3, distx::AdamW{}, {.options = {.clip_norm = 0.5}}, false);
  check_same<float, ZeRO<2>>(3, distx::LAMB{}, {}, false);
  check_same<float, ZeRO<1>>(3, distx::AdamW{}, {.in_parts = true}, false);
  check_same<distx::bfloat16, ZeRO<2>>(3, distx::AdamW{}, {}, false);
  check_same<distx::bfloat16, ZeRO<2>, Precision<float>>(3, distx::AdamW{}, {}, false);
}

namespace {

/// Throws in the pass of one rank, while the others read its gradients.
struct Throwing : distx::SGD {
  const std::atomic<bool>* throws = nullptr;
  template <class T>
  [[nodiscard]] distx::SGD::Coefficients<T> coefficients(const distx::Step& step) const {
    if (throws != nullptr && *throws) throw std::runtime_error("the optimizer failed");
    return distx::SGD::coefficients<T>(step);
  }
};

}  // namespace

TEST_CASE("an exception in the pass of one rank ends the step on every rank") {
  const std::atomic<bool> yes = true;
  const auto ended = toy::endings(3, [&](distx::ThreadCommunicator& inner) {
    Counts counts;
    Watched<distx::ThreadCommunicator> comm(inner.share(), true, counts);
    Model<float> model;
    Throwing optimizer;
    if (comm.rank() == 1) optimizer.throws = &yes;
    distx::DataParallel<ZeRO<1>> training(comm, model.parameters, optimizer, {.bucket_bytes = distx::unlimited});
    model.pass(training, 0);
    training.step({.learning_rate = 0.01});
  });
  CHECK(ended[1].kind == "another");
  CHECK(toy::says(ended[1].words, "the optimizer failed"));
  CHECK(ended[0].kind == "revoked");
  CHECK(ended[2].kind == "revoked");
}

TEST_CASE("ranks that become ready in different orders at stage 3 get a MismatchError in one pass") {
  const auto ended = toy::endings(2, [&](distx::ThreadCommunicator& inner) {
    Counts counts;
    Watched<distx::ThreadCommunicator> comm(inner.share(), true, counts);
    Model<float> model;
    distx::DataParallel<ZeRO<3>> training(comm, model.parameters, distx::SGD{}, {.bucket_bytes = distx::unlimited});
    model.pass(training, 0, false, comm.rank() == 1);
    training.step({.learning_rate = 0.01});
  });
  for (const auto& each : ended) {
    CAPTURE(each.words);
    CHECK(each.kind == "mismatch");
    CHECK(toy::says(each.words, "different orders"));
  }
}

}  // namespace one_pass
