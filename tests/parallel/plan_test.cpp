// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/optim/lamb.hpp>
#include <distx/optim/mixed.hpp>
#include <distx/optim/muon.hpp>
#include <distx/training.hpp>

#include <array>
#include <cmath>
#include <string>

namespace {

/// Table 1 of arXiv 1910.02054: GB of a rank, as printed, at stages 1, 2 and 3.
struct Row {
  std::uint64_t ranks;
  std::array<const char*, 3> small, middle, large;  // 7.5, 128 and 1000 billion parameters
};
const Row table[] = {
    {1, {"120", "120", "120"}, {"2048", "2048", "2048"}, {"16000", "16000", "16000"}},
    {4, {"52.5", "41.3", "30"}, {"896", "704", "512"}, {"7000", "5500", "4000"}},
    {16, {"35.6", "21.6", "7.5"}, {"608", "368", "128"}, {"4750", "2875", "1000"}},
    {64, {"31.4", "16.6", "1.88"}, {"536", "284", "32"}, {"4187", "2218", "250"}},
    {256, {"30.4", "15.4", "0.47"}, {"518", "263", "8"}, {"4046", "2054", "62.5"}},
    {1024, {"30.1", "15.1", "0.12"}, {"513", "257", "2"}, {"4011", "2013", "15.6"}},
};

/// Whether the number, cut or rounded to the printed digits, is what is printed: the paper cuts its larger ones.
bool prints_as(double value, const std::string& printed) {
  const auto point = printed.find('.');
  const int digits = point == std::string::npos ? 0 : static_cast<int>(printed.size() - point - 1);
  const double unit = std::pow(10.0, digits);
  const double expected = std::stod(printed) * unit;
  return std::floor(value * unit + 1e-6) == std::round(expected) ||
         std::floor(value * unit + 0.5 + 1e-6) == std::round(expected);
}

template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const distx::Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST_CASE("Replicate adds three shards of weights and optimizer states, and one copy at stage 0") {
  for (const int stage : {0, 1, 2, 3})
    for (const std::uint64_t ranks : {1U, 2U, 4U}) {
      const auto without = distx::plan(4096, ranks, stage);
      const auto with = distx::plan(4096, ranks, stage, distx::full_precision<>, {.replicate = true});
      const bool whole = stage == 0 || ranks == 1;
      CHECK(without.replicas == 0);
      CHECK(with.replicas == (whole ? 4096 * 12 : 3 * 4096 * 12 / ranks));
      CHECK(with.total() == without.total() + with.replicas);
      CHECK(with.sent == without.sent + (whole ? 0 : 4096 * 12 / ranks));
    }
}

TEST_CASE("mapped weights are not sent, and change nothing below stage 3") {
  for (const int stage : {0, 1, 2, 3}) {
    const auto gathered = distx::plan(4096, 4, stage);
    const auto mapped = distx::plan(4096, 4, stage, distx::full_precision<>, {.map_weights = true});
    CHECK(mapped.total() == gathered.total());
    CHECK(gathered.sent - mapped.sent == (stage == 3 ? 2 * 4 * 3072 : 0));
  }
}

TEST_CASE("shared weights are sharded and not sent below stage 3, where stage 0 is as stage 1") {
  for (const int stage : {0, 1, 2, 3}) {
    const auto own = distx::plan(4096, 4, std::max(stage, 1));
    const auto shared = distx::plan(4096, 4, stage, distx::full_precision<>, {.share_weights = true});
    CHECK(own.weights - shared.weights == (stage == 3 ? 0 : 4 * 3072));
    CHECK(own.sent - shared.sent == (stage == 3 ? 0 : 4 * 3072));
    CHECK(own.gradients == shared.gradients);
    CHECK(own.optimizer == shared.optimizer);
  }
}

}  // namespace

TEST_CASE("the plan of mixed precision equals Table 1 of the paper to its printed digits") {
  for (const auto& row : table)
    for (int stage = 1; stage <= 3; ++stage) {
      CAPTURE(row.ranks);
      CAPTURE(stage);
      const auto printed = static_cast<std::size_t>(stage - 1);
      const auto gigabytes = [&](std::uint64_t parameters) {
        return 1e-9 * static_cast<double>(distx::plan(parameters, row.ranks, stage, distx::mixed_precision<>).total());
      };
      CHECK(prints_as(gigabytes(7'500'000'000), row.small[printed]));
      CHECK(prints_as(gigabytes(128'000'000'000), row.middle[printed]));
      CHECK(prints_as(gigabytes(1'000'000'000'000), row.large[printed]));
    }
  CHECK_FALSE(prints_as(41.24, "41.3"));
  CHECK_FALSE(prints_as(41.41, "41.3"));
  CHECK_FALSE(prints_as(4188.0, "4187"));
}

TEST_CASE("stages 1, 2 and 3 shard states, gradients and weights in turn") {
  const std::uint64_t n = 1200;
  const auto held = [&](int stage) {
    const auto plan = distx::plan(n, 4, stage, distx::full_precision<>);
    return std::array<std::uint64_t, 4>{plan.weights, plan.gradients, plan.optimizer, plan.total()};
  };
  CHECK(held(0) == std::array<std::uint64_t, 4>{4 * n, 4 * n, 8 * n, 16 * n});
  CHECK(held(1) == std::array<std::uint64_t, 4>{4 * n, 4 * n, 2 * n, 10 * n});
  CHECK(held(2) == std::array<std::uint64_t, 4>{4 * n, n, 2 * n, 7 * n});
  CHECK(held(3) == std::array<std::uint64_t, 4>{n, n, 2 * n, 4 * n});
  const auto mixed = distx::plan(n, 4, 0, distx::mixed_precision<>);
  CHECK(mixed.weights == 2 * n);
  CHECK(mixed.gradients == 2 * n);
  CHECK(mixed.optimizer == 12 * n);
}

TEST_CASE("a plan sends 2, 2, 2 and 3 times the other ranks' shards at stages 0 to 3") {
  const std::uint64_t times[] = {2, 2, 2, 3};
  for (int stage = 0; stage <= 3; ++stage) {
    CHECK(distx::plan(1200, 4, stage).sent == 4 * times[stage] * 900);
    CHECK(distx::plan(1200, 4, stage, distx::mixed_precision<>).sent == 2 * times[stage] * 900);
    CHECK(distx::plan(1200, 1, stage).sent == 0);
  }
}

TEST_CASE("a remainder counts for the rank that has most") {
  CHECK(distx::plan(10, 4, 3).weights == 4 * 3);
  CHECK(distx::plan(3, 7, 3).total() == 16);
  CHECK(distx::plan(10, 4, 1).sent == 4 * 2 * 8);
}

TEST_CASE("the plans of a Mixed optimizer's two kinds of parameters add up") {
  const auto mixture = distx::plan(1000, 4, 1, distx::full_precision<distx::Muon>) +
                       distx::plan(200, 4, 1, distx::full_precision<distx::AdamW>);
  CHECK(mixture.weights == 4 * 1200);
  CHECK(mixture.optimizer == 250 * 4 + 50 * 8);
  CHECK(mixture.sent == distx::plan(1200, 4, 1).sent);
  CHECK(mixture.total() == 2 * 4 * 1200 + 1400);
  using Mixture = distx::Mixed<distx::Muon, distx::AdamW>;
  CHECK(distx::plan(1200, 4, 1, distx::full_precision<Mixture>).optimizer == 2400);  // an upper bound
  CHECK(distx::plan(1200, 4, 1, distx::full_precision<distx::LAMB>).optimizer == 2400);
}

TEST_CASE("a plan with an invalid argument is an error") {
  CHECK(refusal([] { (void)distx::plan(0, 1, 0); }).find("plan: invalid number of parameters 0") != std::string::npos);
  CHECK(refusal([] { (void)distx::plan(1, 0, 0); }).find("invalid number of ranks 0") != std::string::npos);
  for (const int stage : {-1, 4})
    CHECK(refusal([=] { (void)distx::plan(1, 1, stage); }).find("must be 0, 1, 2 or 3") != std::string::npos);
  CHECK(refusal([] { (void)distx::plan(~std::uint64_t{0}, 1, 0); }).find("must be in [1, ") != std::string::npos);
}
