// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/training.hpp>

#include <algorithm>
#include <map>
#include <set>

namespace {

using distx::DistributedSampler;
using distx::Remainder;
using distx::SamplerOptions;
using Indices = std::vector<std::size_t>;

/// The k-th batches of all ranks together, sorted.
std::vector<Indices> global_batches(std::size_t samples, int ranks, const SamplerOptions& options,
                                    std::uint64_t epoch) {
  std::vector<Indices> batches;
  for (int rank = 0; rank < ranks; ++rank) {
    const DistributedSampler sampler(samples, rank, ranks, options);
    const Indices mine = sampler.epoch(epoch);
    CHECK(mine.size() == sampler.size());
    CHECK(mine.size() == sampler.batches() * options.batch_size);
    if (rank == 0) batches.resize(sampler.batches());
    CHECK(batches.size() == sampler.batches());  // the same number on every rank
    for (std::size_t i = 0; i < mine.size(); ++i) batches[i / options.batch_size].push_back(mine[i]);
  }
  for (auto& batch : batches) std::sort(batch.begin(), batch.end());
  return batches;
}

std::map<std::size_t, int> count(const std::vector<Indices>& batches) {
  std::map<std::size_t, int> counts;
  for (const auto& batch : batches)
    for (const auto sample : batch) ++counts[sample];
  return counts;
}

struct Rank {
  int rank() const { return 1; }
  int size() const { return 3; }
};

template <class F>
std::string refusal(F&& f) {
  try {
    static_cast<void>(f());
  } catch (const distx::Error& error) {
    return error.what();
  }
  return "accepted";
}
bool says(const std::string& sentence, const std::string& words) { return sentence.find(words) != std::string::npos; }

}  // namespace

TEST_CASE("the ranks' k-th batches together are the k-th batch of one rank with the larger batch") {
  for (const int ranks : {1, 2, 3, 4, 7})
    for (const std::size_t batch : {1u, 2u, 5u})
      for (const std::size_t samples : {35u, 36u, 70u, 71u, 100u, 1797u})
        for (const bool shuffle : {false, true})
          for (const auto remainder : {Remainder::pad, Remainder::drop}) {
            CAPTURE(ranks);
            CAPTURE(batch);
            CAPTURE(samples);
            CAPTURE(shuffle);
            const SamplerOptions options{.batch_size = batch, .shuffle = shuffle, .seed = 5, .remainder = remainder};
            SamplerOptions alone = options;
            alone.batch_size = batch * static_cast<std::size_t>(ranks);
            for (const std::uint64_t epoch : {0u, 3u}) {
              const auto batches = global_batches(samples, ranks, options, epoch);
              CHECK(batches == global_batches(samples, 1, alone, epoch));
              const auto counts = count(batches);
              CHECK(counts.rbegin()->first < samples);
              if (remainder == Remainder::pad) {
                CHECK(counts.size() == samples);  // the union is the data set
                for (const auto& [sample, times] : counts) CHECK(times <= 2);
                CHECK(batches.size() == (samples + alone.batch_size - 1) / alone.batch_size);
              } else {
                for (const auto& [sample, times] : counts) CHECK(times == 1);
                CHECK(batches.size() == samples / alone.batch_size);
              }
            }
          }
}

TEST_CASE("rank r takes every n-th sample of a global batch, from r") {
  const SamplerOptions options{.batch_size = 2, .shuffle = false};
  CHECK(DistributedSampler(12, 0, 3, options).epoch(0) == Indices{0, 3, 6, 9});
  CHECK(DistributedSampler(12, 2, 3, options).epoch(0) == Indices{2, 5, 8, 11});
  CHECK(DistributedSampler(12, Rank{}, options).epoch(0) == Indices{1, 4, 7, 10});
  CHECK(DistributedSampler(7, 2, 3, options).epoch(0) == Indices{2, 5, 1, 4});  // padded from the beginning
}

TEST_CASE("with blocks, rank r takes the r-th block of a global batch, regardless of the number of ranks") {
  for (const bool shuffle : {false, true}) {
    const SamplerOptions whole{.batch_size = 8, .shuffle = shuffle};
    const Indices expected = DistributedSampler(20, 0, 1, whole).epoch(1);
    for (const int ranks : {1, 2, 4, 8}) {
      const std::size_t part = 8 / static_cast<std::size_t>(ranks);
      for (int rank = 0; rank < ranks; ++rank) {
        const DistributedSampler sampler(20, rank, ranks, {.batch_size = part, .shuffle = shuffle, .blocks = true});
        const Indices mine = sampler.epoch(1);
        CHECK(mine.size() == expected.size() / static_cast<std::size_t>(ranks));
        for (std::size_t i = 0; i < mine.size(); ++i)
          CHECK(mine[i] == expected[i / part * 8 + static_cast<std::size_t>(rank) * part + i % part]);
      }
    }
  }
}

TEST_CASE("the order depends on seed and epoch only") {
  const auto order = [](std::uint64_t seed, std::uint64_t epoch) {
    return DistributedSampler(50, 0, 1, {.seed = seed}).epoch(epoch);
  };
  CHECK(order(1, 0) == order(1, 0));
  std::set<Indices> all;
  for (const std::uint64_t seed : {0ull, 1ull, 2ull, 1ull << 32, 1ull << 63})
    for (const std::uint64_t epoch : {0ull, 1ull, 1ull << 40}) all.insert(order(seed, epoch));
  CHECK(all.size() == 15);
  const DistributedSampler unshuffled(50, 0, 1, {.shuffle = false});
  CHECK(unshuffled.epoch(1) == unshuffled.epoch(0));
}

TEST_CASE("the order is the same on every platform") {
  // Worked out by another program from the definition of std::seed_seq and of the 64-bit Mersenne Twister.
  CHECK(distx::detail::permutation(10, 42, 7) == Indices{1, 6, 4, 0, 8, 7, 5, 9, 3, 2});
}

TEST_CASE("all orders are equally likely") {
  std::map<Indices, int> orders;
  constexpr int draws = 24000;
  for (std::uint64_t epoch = 0; epoch < draws; ++epoch) ++orders[distx::detail::permutation(4, 9, epoch)];
  CHECK(orders.size() == 24);
  // 1000 each are expected, with a standard deviation of 31; five of those leave one false alarm in a million.
  for (const auto& [order, times] : orders) CHECK(std::abs(times - draws / 24) < 5 * 31);
}

TEST_CASE("invalid ranks, batch sizes and too few samples throw") {
  CHECK(says(refusal([] { return DistributedSampler(3, 0, 4); }), "too few samples: 3 for 4 ranks"));
  CHECK(says(refusal([] { return DistributedSampler(0, 0, 1); }), "too few samples: 0 for 1 ranks"));
  CHECK(says(refusal([] { return DistributedSampler(10, 0, 2, {.batch_size = 0}); }), "invalid batch_size 0"));
  CHECK(says(refusal([] { return DistributedSampler(10, 0, 2, {.batch_size = 6}); }),
             "batch_size 6 exceeds the 5 of 10 samples"));
  CHECK(says(refusal([] { return DistributedSampler(11, 0, 2, {.batch_size = 6, .remainder = Remainder::drop}); }),
             "batch_size 6 exceeds the 5 of 11 samples"));
  CHECK(refusal([] { return DistributedSampler(11, 0, 2, {.batch_size = 6}); }) == "accepted");
  CHECK(refusal([] { return DistributedSampler(4, 3, 4); }) == "accepted");
  for (const int rank : {-1, 2})
    CHECK_THROWS_AS(static_cast<void>(DistributedSampler(10, rank, 2)), distx::InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(DistributedSampler(10, 0, 0)), distx::InvalidArgument);
}

TEST_CASE("the rest of an epoch is partitioned anew among any number of ranks") {
  for (const auto remainder : {Remainder::pad, Remainder::drop})
    for (const bool shuffle : {false, true})
      for (const int before : {1, 2, 3, 4})
        for (const int ranks : {1, 2, 3, 4, 8})
          for (const std::size_t batches : {0u, 1u, 3u, 5u}) {
            CAPTURE(before);
            CAPTURE(ranks);
            CAPTURE(batches);
            constexpr std::size_t samples = 61;
            SamplerOptions options{.batch_size = 2, .shuffle = shuffle, .seed = 5, .remainder = remainder};
            const DistributedSampler first(samples, 0, before, options);
            const auto at = first.after(first.position(4), batches);
            CHECK(at == DistributedSampler::Position{4, 2 * batches * static_cast<std::size_t>(before), 5, samples});
            const auto whole = DistributedSampler(samples, 0, 1, {.shuffle = shuffle, .seed = 5}).epoch(4);
            options.batch_size = ranks == 8 ? 1 : 3;
            std::map<std::size_t, int> counts;
            for (std::size_t i = 0; i < at.taken; ++i) ++counts[whole[i]];
            std::vector<Indices> all;
            for (int rank = 0; rank < ranks; ++rank)
              all.push_back(DistributedSampler(samples, rank, ranks, options).epoch(at));
            for (const auto& mine : all) {
              CHECK(mine.size() == all[0].size());
              for (const auto sample : mine) ++counts[sample];
            }
            const std::size_t global = options.batch_size * static_cast<std::size_t>(ranks);
            const std::size_t rest = samples - at.taken;
            const bool pads = remainder == Remainder::pad;
            CHECK(all[0].size() == (rest + (pads ? global - 1 : 0)) / global * options.batch_size);
            const std::size_t padding = pads ? all[0].size() * static_cast<std::size_t>(ranks) - rest : 0;
            for (std::size_t i = 0; i < samples; ++i) {
              const bool left_out = !pads && i >= at.taken + rest / global * global;
              CHECK(counts[whole[i]] == (left_out ? 0 : i < padding ? 2 : 1));
            }
          }
}

TEST_CASE("the rest of an epoch on the same ranks is what an uninterrupted run would take") {
  for (const auto remainder : {Remainder::pad, Remainder::drop}) {
    const DistributedSampler sampler(100, 1, 3, {.batch_size = 4, .seed = 7, .remainder = remainder});
    const auto whole = sampler.epoch(2);
    for (std::size_t taken = 0; taken < sampler.batches(); ++taken) {
      const auto rest = sampler.epoch(sampler.after(sampler.position(2), taken));
      CHECK(rest == Indices(whole.begin() + static_cast<std::ptrdiff_t>(4 * taken), whole.end()));
    }
    CHECK(sampler.after(sampler.position(2), sampler.batches()) == sampler.position(3));
  }
}

TEST_CASE("an epoch with less than a global batch left is over with `drop`") {
  const DistributedSampler sampler(10, 0, 2, {.batch_size = 4, .remainder = Remainder::drop});
  const DistributedSampler::Position end{0, 9, 0, 10};
  CHECK(sampler.epoch(end).empty());
  CHECK(sampler.after(end, 0) == sampler.position(1));
}

TEST_CASE("a position is a line of text") {
  const DistributedSampler::Position at{3, 1280, ~std::uint64_t{0}, 60000};
  CHECK(at.to_string() == "epoch=3 taken=1280 seed=18446744073709551615 samples=60000");
  CHECK(DistributedSampler::Position::from_string(at.to_string()) == at);
  for (const char* text : {"", "epoch=3", "epoch=3 taken=1 seed=2 samples=3 ", "epoch=-3 taken=1 seed=2 samples=3",
                           "epoch=3 taken= seed=2 samples=3", "epoch=3 taken=1 seed=2 samples=18446744073709551616"})
    CHECK(says(refusal([&] { return DistributedSampler::Position::from_string(text); }), "is not a position"));
}

TEST_CASE("a position of other data, or beyond the epoch, throws") {
  const DistributedSampler sampler(10, 0, 2, {.batch_size = 2, .seed = 3});
  for (const auto& at : {DistributedSampler::Position{0, 0, 4, 10}, DistributedSampler::Position{0, 0, 3, 11},
                         DistributedSampler::Position{0, 10, 3, 10}})
    CHECK(says(refusal([&] { return sampler.epoch(at); }),
               "is not one of this sampler, which has seed=3 samples=10; resume with the data set"));
  CHECK_THROWS_AS(static_cast<void>(sampler.after(sampler.position(0), 4)), distx::InvalidArgument);
}
