// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <distx/comm/point_to_point.hpp>

#include "stages.hpp"

namespace {

using Counts = std::vector<std::size_t>;  // batches of each rank
using Weights = std::vector<float>;

std::size_t sample_of(std::size_t rank, std::size_t step) { return 10 * step + rank; }

/// Weights of one rank that computes all ranks' gradients, and averages them in the order of the ranks.
/// @param times  that each gradient is added
Weights expected(const Counts& batches, bool over_active, float times = 1) {
  Weights weights;
  toy::on_ranks(1, [&](distx::ThreadCommunicator& comm) {
    toy::Model model;
    auto refs = model.parameters();
    distx::DataParallel<> training(comm, refs, distx::AdamW{.weight_decay = 0.125});
    for (std::size_t step = 0; step < std::ranges::max(batches); ++step) {
      const auto ranks = static_cast<float>(batches.size());
      const auto active = std::ranges::count_if(batches, [&](std::size_t count) { return count > step; });
      const double weight = over_active ? static_cast<double>(batches.size()) / static_cast<double>(active) : 1;
      for (std::size_t p = 0; p < refs.size(); ++p) {
        for (std::size_t i = 0; i < toy::sizes[p]; ++i) {
          float sum = 0;
          for (std::size_t rank = 0; rank < batches.size(); ++rank)
            if (step < batches[rank])
              sum += refs[p].weight[i] - static_cast<float>(toy::target(p, i, sample_of(rank, step)));
          refs[p].gradient[i] = times * (sum / ranks * static_cast<float>(weight));
        }
        training.ready(refs[p]);
      }
      training.step({.learning_rate = 0.01});
    }
    weights = model.weights();
  });
  return weights;
}

struct Result {
  std::vector<Weights> weights;          // of each rank
  std::vector<std::vector<int>> active;  // what `announce_batch` returned
};

template <class Training, class Pass>
std::vector<int> join_steps(Training& training, std::size_t batches, bool in_parts, Pass&& pass) {
  std::vector<int> active;
  for (std::size_t step = 0; (active.push_back(training.announce_batch(step < batches)), active.back() > 0); ++step) {
    if (step < batches) pass(step);
    if (in_parts) {
      training.reduce_gradients();
      training.update_weights({.learning_rate = 0.01});
      training.gather_weights();
    } else {
      training.step({.learning_rate = 0.01});
    }
  }
  return active;
}

template <class... Policies>
Result train(const Counts& batches, const distx::DataParallelOptions& options, bool borrowed, bool in_parts = false) {
  Result result{std::vector<Weights>(batches.size()), std::vector<std::vector<int>>(batches.size())};
  toy::on_ranks(static_cast<int>(batches.size()), [&](distx::ThreadCommunicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    auto parameters = stages::owned();
    toy::Model model;
    auto refs = model.parameters();
    using Training = distx::DataParallel<distx::ZeRO<distx::Dynamic>, Policies...>;
    Training training(comm, borrowed ? distx::ParameterList<>(refs) : distx::ParameterList<>(parameters),
                      distx::AdamW{.weight_decay = 0.125}, options);
    const auto one = [&](std::size_t sample) {
      borrowed ? stages::pass(training, refs, sample) : stages::pass(training, parameters, sample);
    };
    result.active[rank] = join_steps(training, batches[rank], in_parts, [&](std::size_t step) {
      const std::size_t sample = sample_of(rank, step);
      if constexpr (Training::accumulation == distx::detail::Accumulation::none) {
        one(sample);
      } else {
        for (std::size_t k = 0; k < 2; ++k) {
          const auto scope = training.micro_batch({.index = k, .count = 2});
          one(sample);
        }
      }
    });
    if (borrowed) {
      result.weights[rank] = model.weights();
      return;
    }
    for (const auto& parameter : parameters) {
      const auto weights = training.unshard(parameter);
      const auto values = training.value(parameter);
      result.weights[rank].insert(result.weights[rank].end(), values.begin(), values.end());
    }
  });
  return result;
}

const std::vector<Counts> uneven = {{3, 2}, {0, 2}, {2, 0, 3}, {1, 3, 2, 0}};

void check_all(const Result& result, const Weights& reference) {
  for (const auto& weights : result.weights) CHECK(toy::same_bits(weights, reference));
}

/// How each rank ends if `f(training, parameters, step)` makes the passes of ranks with 3, 1 and 0 batches.
template <class F>
std::vector<toy::Ending> endings(const distx::DataParallelOptions& options, F&& f) {
  return toy::endings(3, [&](distx::ThreadCommunicator& comm) {
    auto parameters = stages::owned();
    stages::Training training(comm, parameters, distx::AdamW{}, options);
    const std::size_t batches[] = {3, 1, 0};
    for (std::size_t step = 0;; ++step) {
      const bool has_batch = step < batches[comm.rank()];
      if (training.announce_batch(has_batch) == 0) break;
      f(comm.rank(), has_batch, step, training, parameters);
      training.step({.learning_rate = 0.01});
    }
  });
}

}  // namespace

TEST_CASE(
    "ranks with different numbers of batches end with the weights of one rank that averages alike, at each stage") {
  for (const auto& batches : uneven)
    for (const bool over_active : {false, true}) {
      if (over_active && batches.size() == 2) continue;
      CAPTURE(batches.size());
      CAPTURE(over_active);
      const auto reference = expected(batches, over_active);
      stages::for_each_way(
          {.average_over_active = over_active}, 3,
          [&](const auto& options, bool borrowed) {
            const auto result = train<>(batches, options, borrowed, options.overlap);
            check_all(result, reference);
            for (const auto& active : result.active) {
              CHECK(active.size() == std::ranges::max(batches) + 1);
              for (std::size_t step = 0; step < active.size(); ++step)
                CHECK(active[step] == std::ranges::count_if(batches, [&](std::size_t count) { return count > step; }));
            }
          },
          {4096});
    }
}

TEST_CASE("uneven ranks agree with micro-batches, groups and unused parameters") {
  for (const bool over_active : {false, true})
    for (int stage = 0; stage <= 3; ++stage)
      for (const bool overlap : {false, true}) {
        CAPTURE(over_active);
        CAPTURE(stage);
        CAPTURE(overlap);
        const distx::DataParallelOptions options{
            .bucket_bytes = 4096, .overlap = overlap, .stage = stage, .average_over_active = over_active};
        const Counts batches = {2, 0, 3};
        const auto twice = expected(batches, over_active, 2);
        check_all(train<distx::Accumulate<distx::Sharded>>(batches, options, false), twice);
        if (stage < 2) check_all(train<distx::Accumulate<distx::Local>>(batches, options, false), twice);
        auto unused = options;
        unused.allow_unused = true;
        check_all(train<>(batches, unused, false), expected(batches, over_active));
        auto groups = options;
        groups.group_ranks = 2;
        // At most one rank of a group, or one group, has batches: the groups' sums do not change the order.
        for (const Counts& four : {Counts{3, 0, 0, 2}, Counts{0, 0, 1, 2}})
          if (stage > 0) check_all(train<distx::Hybrid>(four, groups, false), expected(four, over_active));
      }
}

TEST_CASE("uneven ranks clip the gradients that they average") {
  const Counts batches = {2, 0, 3};
  const auto reference =
      train<>(batches, {.overlap = false, .stage = 0, .clip_norm = 1, .average_over_active = true}, false).weights[0];
  CHECK_FALSE(toy::same_bits(reference, expected(batches, true)));
  for (int stage = 0; stage <= 3; ++stage)
    check_all(
        train<>(batches, {.bucket_bytes = 4096, .stage = stage, .clip_norm = 1, .average_over_active = true}, false),
        reference);
}

TEST_CASE("uneven ranks agree with Precision, and a rank without a batch holds no more gradients than the others") {
  using Training = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Precision<distx::bfloat16>>;
  std::vector<float> reference;
  for (int stage = 0; stage <= 3; ++stage) {
    CAPTURE(stage);
    std::vector<std::uint64_t> peaks(3);
    toy::on_ranks(3, [&](distx::ThreadCommunicator& comm) {
      const auto rank = static_cast<std::size_t>(comm.rank());
      std::vector<distx::Parameter<distx::bfloat16>> parameters;
      for (std::size_t p = 0; p < 6; ++p)
        parameters.emplace_back("layer" + std::to_string(p) + ".weight", 1000, [](distx::Span<distx::bfloat16> values) {
          for (std::size_t i = 0; i < values.size(); ++i)
            values[i] = static_cast<distx::bfloat16>(static_cast<float>(i % 17));
        });
      Training training(comm, parameters, distx::SGD{.momentum = 0.5f},
                        {.bucket_bytes = 0, .stage = stage, .average_over_active = true});
      const std::size_t batches[] = {2, 3, 0};
      join_steps(training, batches[rank], false, [&](std::size_t step) {
        const auto first = training.unshard(parameters[0]);  // a rank without a batch has more free memory
        for (std::size_t p = 0; p < parameters.size(); ++p) {
          const auto& parameter = parameters[step % 2 == 0 ? p : parameters.size() - 1 - p];  // not as prefetched
          const auto weights = training.unshard(parameter);
          const auto value = training.value(parameter);
          const auto gradient = training.gradient(parameter);
          for (std::size_t i = 0; i < value.size(); ++i)
            gradient[i] = static_cast<distx::bfloat16>(static_cast<float>(value[i]) - static_cast<float>(rank));
          training.ready(parameter);
        }
      });
      peaks[rank] = training.memory().gradients.peak;
      std::vector<float> all;
      for (const auto& parameter : parameters) {
        const auto weights = training.unshard(parameter);
        for (const auto value : training.value(parameter)) all.push_back(static_cast<float>(value));
      }
      if (stage == 0 && rank == 0) reference = all;
      distx::barrier(comm);
      CHECK(all == reference);
    });
    CHECK(peaks[2] <= std::max(peaks[0], peaks[1]));
  }
}

TEST_CASE("if a rank throws in an uneven step, no rank waits for it") {
  for (int stage = 0; stage <= 3; ++stage) {
    CAPTURE(stage);
    for (const std::size_t at : {0u, 1u}) {
      const auto ends =
          endings({.stage = stage}, [&](int rank, bool has_batch, std::size_t step, auto& training, auto& parameters) {
            if (rank == 0 && step == at) {
              const auto weights = training.unshard(parameters[0]);
              throw std::runtime_error("no memory for this batch");
            }
            if (has_batch) stages::pass(training, parameters, step);
          });
      CHECK(ends[0].kind == "another");
      for (const int rank : {1, 2}) {
        CAPTURE(ends[static_cast<std::size_t>(rank)].words);
        CHECK((ends[static_cast<std::size_t>(rank)].kind == "revoked" ||
               ends[static_cast<std::size_t>(rank)].kind == "error"));  // a failed rank
      }
    }
  }
}

TEST_CASE("a rank without a batch makes no calls but those that end the step") {
  for (int stage = 0; stage <= 3; ++stage) {
    CAPTURE(stage);
    const auto ends = endings({.stage = stage}, [&](int, bool, std::size_t step, auto& training, auto& parameters) {
      stages::pass(training, parameters, step);  // on all ranks
    });
    CHECK(ends[2].kind == "state");
    CHECK(toy::says(ends[2].words,
                    "announce_batch has declared that this rank has no batch in this step; call step next"));
    for (const int rank : {0, 1}) CHECK(ends[static_cast<std::size_t>(rank)].kind == "revoked");
  }
}

TEST_CASE("weights are not evaluated in an uneven step at stage 3, and announce_batch is not called within a step") {
  const auto one_says = [](const std::vector<toy::Ending>& ends, const char* words) {
    return std::ranges::any_of(ends,
                               [&](const auto& end) { return end.kind == "state" && toy::says(end.words, words); });
  };
  CHECK(one_says(endings({.stage = 3},
                         [&](int, bool has_batch, std::size_t, auto& training, auto& parameters) {
                           if (!has_batch) return;
                           const auto scope = training.evaluate();
                           const auto weights = training.unshard(parameters[0]);
                         }),
                 "evaluate after step and before announce_batch"));
  CHECK(one_says(endings({.bucket_bytes = 0, .stage = 2},
                         [&](int, bool has_batch, std::size_t step, auto& training, auto& parameters) {
                           if (!has_batch) return;
                           stages::pass(training, parameters, step);
                           static_cast<void>(training.announce_batch(true));
                         }),
                 "a step is in progress"));
}
