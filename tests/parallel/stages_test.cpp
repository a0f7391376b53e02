// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include "stages.hpp"

using namespace distx::literals;

namespace {

/// Every rank's weights.
std::vector<std::vector<float>> train(int ranks, const stages::Way& way) {
  std::vector<std::vector<float>> all(static_cast<std::size_t>(ranks));
  toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    all[static_cast<std::size_t>(comm.rank())] = stages::train(comm, way);
  });
  return all;
}

void check_all(const std::vector<std::vector<float>>& all, const std::vector<float>& expected) {
  for (const auto& rank : all) CHECK(toy::same_bits(rank, expected));
}

}  // namespace

TEST_CASE("the bits do not depend on the stage, buckets, overlap, ownership or parts") {
  for (const int ranks : toy::rank_counts)
    for (const double clip : {std::numeric_limits<double>::infinity(), 1.0}) {
      if (clip != 1 && ranks != 3) continue;
      const auto expected =
          train(ranks, {.options = {.bucket_bytes = 0, .overlap = false, .stage = 0, .clip_norm = clip}}).front();
      CHECK(expected.size() == 21125);
      CHECK_FALSE(toy::same_bits(expected, toy::Model().weights()));
      CAPTURE(ranks);
      CAPTURE(clip);
      stages::for_each_way({.clip_norm = clip}, 3, [&](const auto& options, bool borrowed) {
        const bool in_parts = options.bucket_bytes == 4_KiB;
        check_all(train(ranks, {.options = options, .borrowed = borrowed, .in_parts = in_parts}), expected);
      });
    }
}

TEST_CASE("the bits do not depend on the order of ready") {
  for (const int ranks : {2, 4})
    for (const int stage : {0, 1, 2}) {
      const auto expected = train(ranks, {.options = {.stage = 0}}).front();
      check_all(train(ranks, {.options = {.bucket_bytes = 100, .stage = stage}, .unordered = true}), expected);
    }
}
