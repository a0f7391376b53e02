// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "data/digits.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "data/augment.hpp"
#include "data/synthetic_digits.hpp"
#include "temporary_folder.hpp"

using namespace examples;

namespace {

/// Digits of one pixel each, which is their number.
Digits numbered(std::size_t count) {
  Digits digits{1, 1, {}, {}};
  for (std::size_t i = 0; i < count; ++i) {
    digits.images.push_back(static_cast<float>(i));
    digits.labels.push_back(static_cast<std::uint8_t>(i * i % 10));
  }
  return digits;
}

std::array<int, 10> count_classes(const Digits& digits) {
  std::array<int, 10> counts{};
  for (const std::uint8_t label : digits.labels) ++counts.at(label);
  return counts;
}

}  // namespace

TEST_CASE("select takes images and labels in the order asked for") {
  const Digits digits{1, 2, {1, 2, 3, 4, 5, 6}, {7, 8, 9}};
  const std::vector<std::size_t> places{2, 0, 2};
  const Digits chosen = select(digits, places);
  CHECK(chosen.images == std::vector<float>{5, 6, 1, 2, 5, 6});
  CHECK(chosen.labels == std::vector<std::uint8_t>{9, 7, 9});
  CHECK(chosen.height == 1);
  CHECK(chosen.width == 2);
}

TEST_CASE("a split is a partition, by the seed, with its share of every class") {
  const Digits digits = numbered(1003);
  const auto [training, held_out] = split_held_out(digits, 0.2, 5);
  CHECK(held_out.size() == 200);
  CHECK(training.size() == 803);
  std::vector<float> all = training.images;
  all.insert(all.end(), held_out.images.begin(), held_out.images.end());
  std::ranges::sort(all);
  CHECK(all == digits.images);
  CHECK(std::ranges::is_sorted(training.images));
  CHECK(std::ranges::is_sorted(held_out.images));
  for (const float number : held_out.images) {
    const auto place = static_cast<std::size_t>(number);
    CHECK(held_out
              .labels[static_cast<std::size_t>(std::ranges::find(held_out.images, number) - held_out.images.begin())] ==
          digits.labels[place]);
  }
  const auto whole = count_classes(digits);
  const auto part = count_classes(held_out);
  for (std::size_t i = 0; i < 10; ++i) CHECK(std::abs(part[i] - 0.2 * whole[i]) <= 1);
  CHECK(split_held_out(digits, 0.2, 5).held_out.images == held_out.images);
  CHECK(split_held_out(digits, 0.2, 6).held_out.images != held_out.images);
}

TEST_CASE("a split with an empty part is refused") {
  for (const double share : {0.0, 0.1, 1.0, -1.0, 2.0}) {
    CAPTURE(share);
    CHECK(contains(complaint([&] { split_held_out(numbered(4), share, 1); }), "one part would be empty"));
  }
  CHECK(contains(complaint([&] { split_held_out(Digits{}, 0.2, 1); }), "one part would be empty"));
}

TEST_CASE("enlarging interpolates between the centres of the pixels") {
  const Digits larger = enlarge(Digits{1, 2, {0, 1, 1, 1}, {3, 4}}, 2);
  CHECK(larger.height == 2);
  CHECK(larger.width == 4);
  CHECK(larger.images == std::vector<float>{0, .25, .75, 1, 0, .25, .75, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  CHECK(larger.labels == std::vector<std::uint8_t>{3, 4});
  const Digits columns = enlarge(Digits{2, 1, {0, 1}, {3}}, 2);
  CHECK(columns.images == std::vector<float>{0, 0, .25, .25, .75, .75, 1, 1});
  CHECK(enlarge(columns, 1).images == columns.images);
}

TEST_CASE("shifted copies: as it was, up, down, left, right") {
  const Digits all = with_shifted_copies(Digits{2, 2, {1, 2, 3, 4}, {5}});
  CHECK(all.images == std::vector<float>{1, 2, 3, 4, 3, 4, 0, 0, 0, 0, 1, 2, 2, 0, 4, 0, 0, 1, 0, 3});
  CHECK(all.labels == std::vector<std::uint8_t>{5, 5, 5, 5, 5});
  CHECK(with_shifted_copies(numbered(2)).labels == std::vector<std::uint8_t>{0, 1, 0, 1, 0, 1, 0, 1, 0, 1});
}

TEST_CASE("synthetic digits: every class, the seed's bits, and no other number than 0 to 1") {
  const Digits digits = synthetic_digits(30, 1);
  CHECK(digits.height == 28);
  CHECK(digits.images.size() == 30 * 28 * 28);
  for (const int count : count_classes(digits)) CHECK(count == 3);
  CHECK(std::ranges::all_of(digits.images, [](float value) { return value >= 0 && value <= 1; }));
  CHECK(synthetic_digits(30, 1).images == digits.images);
  CHECK(synthetic_digits(30, 2).images != digits.images);
  const Digits more = synthetic_digits(40, 1);
  CHECK(std::equal(digits.images.begin(), digits.images.end(), more.images.begin()));
  CHECK(synthetic_digits(3, 1, 8).images.size() == 3 * 64);
  CHECK(synthetic_digits(0, 1).size() == 0);
}

TEST_CASE("synthetic digits are distinguishable, but not by comparing pixels alone") {
  const Digits known = synthetic_digits(1000, 1);
  const Digits asked = synthetic_digits(200, 2);
  int correct = 0;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    float nearest = 1e9F;
    std::uint8_t label = 0;
    for (std::size_t j = 0; j < known.size(); ++j) {
      float distance = 0;
      const auto a = asked.image(i), b = known.image(j);
      for (std::size_t k = 0; k < a.size(); ++k) distance += (a[k] - b[k]) * (a[k] - b[k]);
      if (distance < nearest) {
        nearest = distance;
        label = known.labels[j];
      }
    }
    correct += label == asked.labels[i] ? 1 : 0;
  }
  MESSAGE("nearest neighbour: " << correct << " of 200");
  CHECK(correct > 120);
  CHECK(correct < 196);
}
