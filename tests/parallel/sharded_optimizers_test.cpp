// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include "kinds.hpp"
#include "optim/proportional.hpp"

using namespace distx::literals;

namespace {

using kinds::Mixture;
const std::vector<int> all_counts(std::begin(toy::rank_counts), std::end(toy::rank_counts));
const Mixture mixture{distx::Muon{.iterations = 2}};

/// A user's own: steps of one length, along the sign of a mean of gradients.
struct Signs {
  static constexpr std::size_t states = 1;
  template <class T>
  T coefficients(const distx::Step& step) const {
    return static_cast<T>(step.learning_rate);
  }
  template <class T, class V>
  static constexpr void update(const T& rate, V& weight, V gradient, V& mean) {
    using std::copysign;
    mean = T{0.75} * mean + T{0.25} * gradient;
    weight -= copysign(V(rate), mean);
  }
};

/// A user's own: each row of a matrix takes a step of the same length.
struct RowByRow {
  static constexpr std::size_t states = 1;
  template <class T>
  T coefficients(const distx::Step& step) const {
    return static_cast<T>(step.learning_rate);
  }
  template <class T, class V>
  static constexpr V direction(const T&, V, V gradient, V& sum) {
    return sum += gradient;
  }
  static std::size_t scratch(distx::MatrixShape shape) { return shape.rows; }
  template <class T>
  double transform(distx::HostStream stream, distx::MatrixShape shape, distx::Span<T> direction,
                   distx::Span<T> norms) const {
    for (std::size_t r = 0; r < shape.rows; ++r) {
      const auto row = direction.subspan(r * shape.columns, shape.columns);
      norms[r] = static_cast<T>(distx::fixed_point_norm(stream, row));
      for (T& x : row) x /= norms[r] + 1;
    }
    return 0.5;
  }
  template <class T, class V>
  static constexpr void apply(const T& rate, V& weight, V direction, V factor) {
    weight -= rate * factor * direction;
  }
};

/// Returns each rank's result.
template <class Training = stages::Training, class T = float, class Optimizer>
std::vector<kinds::Trained> train(int ranks, const Optimizer& optimizer, const kinds::Way& way) {
  std::vector<kinds::Trained> all(static_cast<std::size_t>(ranks));
  toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    all[static_cast<std::size_t>(comm.rank())] = kinds::train<Training, T>(comm, optimizer, way);
  });
  return all;
}

/// Checks that the weights equal those of whole parameters updated by hand, for every way.
template <class Optimizer>
void check_bits(const std::vector<int>& rank_counts, const Optimizer& optimizer,
                const distx::DataParallelOptions& given = {}, bool matrices_only = false) {
  for (const int ranks : rank_counts) {
    auto options = given;
    options.overlap = false;
    options.stage = 0;
    const auto expected =
        train(ranks, optimizer, {.options = options, .matrices_only = matrices_only, .by_hand = true}).front().weights;
    CAPTURE(ranks);
    stages::for_each_way(given, 3, [&](const auto& way, bool borrowed) {
      for (const auto& rank : train(ranks, optimizer, {way, borrowed, matrices_only}))
        CHECK(toy::same_bits(rank.weights, expected));
    });
  }
}

/// Of all parameters, each on 64 bytes: the elements of vectors and of matrices, and the largest matrix.
struct Sizes {
  std::size_t vectors = 0, matrices = 0, largest = 0;
};
Sizes sizes_of_model() {
  Sizes sizes;
  for (const auto& shape : kinds::shapes) {
    const std::size_t size = distx::detail::round_up_to_lines(4 * kinds::elements(shape)) / 4;
    (shape.rows > 0 ? sizes.matrices : sizes.vectors) += size;
    if (shape.rows > 0) sizes.largest = std::max(sizes.largest, size);
  }
  return sizes;
}

}  // namespace

TEST_CASE("LAMB has the same bits for every partition of its parameters") {
  check_bits(all_counts, distx::LAMB{});
  check_bits({3}, distx::LAMB{.weight_decay = 0}, {.allow_unused = true, .clip_norm = 1});
}

TEST_CASE("Muon mixed with AdamW has the same bits, whichever rank has a parameter") {
  check_bits(all_counts, mixture);
  check_bits({3}, mixture, {.allow_unused = true, .clip_norm = 1});
}

TEST_CASE("custom optimizers are sharded and assigned like those of the library") {
  check_bits({2}, Signs{});
  check_bits({2}, Proportional{});
  check_bits({2}, RowByRow{}, {}, true);
}

TEST_CASE("each parameter has its optimizer's state only, and whole parameters are balanced over the ranks") {
  const Sizes sizes = sizes_of_model();
  const auto check = [&](const auto& optimizer, std::size_t vector_states, std::size_t matrix_states, bool whole) {
    const std::size_t psi = 4 * (sizes.vectors + sizes.matrices);
    const std::size_t state = 4 * (vector_states * sizes.vectors + matrix_states * sizes.matrices);
    for (const int ranks : {1, 2, 3, 4, 7, 8})
      for (const int stage : {0, 1, 2, 3})
        for (const std::size_t bytes : {0_KiB, 4_KiB, distx::unlimited}) {
          CAPTURE(ranks);
          CAPTURE(stage);
          CAPTURE(bytes);
          const auto n = static_cast<std::size_t>(ranks);
          // Beyond an even share: a line of each bucket, or one matrix.
          const std::size_t more = whole ? 4 * sizes.largest : 64 * 9;
          std::size_t states = 0, gradients = 0, weights = 0;
          for (const auto& rank : train(ranks, optimizer, {{.bucket_bytes = bytes, .stage = stage}})) {
            const auto& memory = rank.memory;
            states += memory.optimizer.held;
            gradients += memory.gradients.held;
            if (stage == 0)
              CHECK(memory.optimizer.held == state);
            else
              CHECK(memory.optimizer.held <= std::max(vector_states, matrix_states) * (psi / n + more));
            CHECK(memory.gradients.held <= (stage < 2 ? psi : psi / n + more));
            CHECK(memory.weights.held <= (stage < 3 ? psi : psi / n + more));
            if (stage < 3) CHECK(memory.weights.held == psi);
            weights += memory.weights.held;
          }
          if (stage == 3) CHECK(weights == psi);
          if (stage >= 1) CHECK(states == state);
          if (stage >= 2) CHECK(gradients == psi);
        }
  };
  check(distx::LAMB{}, 2, 2, false);
  check(mixture, 2, 1, true);
}

TEST_CASE("matrices of many buckets are assigned to all ranks") {
  for (const int ranks : {1, 2, 4, 8})
    for (const int stage : {1, 2, 3})
      toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
        std::vector<distx::Parameter<float>> parameters;
        for (int p = 0; p < 8; ++p)
          parameters.emplace_back("m" + std::to_string(p), 256, distx::ParameterOptions{.rows = 16});
        stages::Training training(comm, parameters, distx::Muon{}, {.bucket_bytes = 0, .stage = stage});
        const std::size_t share = 8 * 1024 / static_cast<std::size_t>(ranks);
        CHECK(training.memory().optimizer.held == share);
        CHECK(training.memory().weights.held == (stage == 3 ? share : 8 * 1024));
      });
}

TEST_CASE("master weights, 16-bit weights, groups and micro-batches have the same bits at every stage") {
  using distx::bfloat16;
  using Short = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Precision<bfloat16>>;
  using Hybrid = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Hybrid>;
  using Accumulating = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Accumulate<distx::Sharded>>;
  const Sizes sizes = sizes_of_model();
  const auto check = [&](const auto& optimizer, std::size_t matrix_states) {
    for (const int ranks : {1, 3, 4}) {
      kinds::Floats expected[4];
      for (const int stage : {0, 1, 2, 3})
        for (const std::size_t bytes : {4_KiB, distx::unlimited}) {
          CAPTURE(ranks);
          CAPTURE(stage);
          const auto same = [&](std::size_t i, const std::vector<kinds::Trained>& all) {
            for (const auto& rank : all) {
              if (expected[i].empty()) expected[i] = rank.weights;
              CHECK(toy::same_bits(rank.weights, expected[i]));
            }
          };
          const distx::DataParallelOptions options{.bucket_bytes = bytes, .stage = stage};
          const auto masters = train<Short, bfloat16>(ranks, optimizer, {options});
          same(0, masters);
          std::size_t state = 0;
          for (const auto& rank : masters) state += rank.memory.optimizer.held;
          if (stage == 0) state /= static_cast<std::size_t>(ranks);
          const std::size_t least = 12 * sizes.vectors + (4 + 4 * matrix_states) * sizes.matrices;
          CHECK((state >= least && state <= least + 12 * 16 * 8));  // lines of 32 elements instead of 16
          same(1, train<stages::Training, bfloat16>(ranks, optimizer, {options}));
          same(2, train<Accumulating>(ranks, optimizer, {options}));
          if (ranks != 4 || stage == 0) continue;
          auto grouped = options;
          grouped.group_ranks = 2;
          same(3, train<Hybrid>(ranks, optimizer, {grouped}));
        }
      CHECK_FALSE(expected[0] == expected[1]);
    }
  };
  check(distx::LAMB{}, 2);
  check(mixture, 1);
}

TEST_CASE("an optimizer of matrices names a parameter without .rows") {
  for (const auto& ending : toy::endings(2, [](auto& comm) {
         std::vector<distx::Parameter<float>> parameters;
         parameters.emplace_back("w.weight", 6, distx::ParameterOptions{.rows = 2});
         parameters.emplace_back("w.bias", 2);
         stages::Training training(comm, parameters, distx::Muon{}, {.stage = 1});
       })) {
    CHECK(ending.kind == "argument");
    CHECK(toy::says(ending.words, "the optimizer requires matrix parameters, but 'w.bias' has no .rows set"));
  }
}
