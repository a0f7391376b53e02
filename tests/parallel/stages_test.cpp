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
      const auto expected = train(ranks, {.options = {.bucket_bytes = 0, .overlap = false, .stage = 0,
                                                      .clip_norm = clip}}).front();
      CHECK(expected.size() == 21125);
      CHECK_FALSE(toy::same_bits(expected, toy::Model().weights()));
      for (const int stage : {0, 1, 2, 3})
        for (const bool overlap : {false, true})
          for (const std::size_t bytes : {0_KiB, 4_KiB, distx::unlimited})
            for (const bool borrowed : {false, true}) {
              if (borrowed && stage >= 2) continue;
              CAPTURE(ranks);
              CAPTURE(clip);
              CAPTURE(stage);
              CAPTURE(overlap);
              CAPTURE(bytes);
              CAPTURE(borrowed);
              const distx::DataParallelOptions options{
                  .bucket_bytes = bytes, .overlap = overlap, .stage = stage, .clip_norm = clip};
              check_all(train(ranks, {.options = options, .borrowed = borrowed, .in_parts = bytes == 4_KiB}), expected);
            }
    }
}

TEST_CASE("the bits do not depend on the order of ready") {
  for (const int ranks : {2, 4})
    for (const int stage : {0, 1, 2}) {
      const auto expected = train(ranks, {.options = {.stage = 0}}).front();
      check_all(train(ranks, {.options = {.bucket_bytes = 100, .stage = stage}, .unordered = true}), expected);
    }
}
