// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "common/portable_random.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include <doctest/doctest.h>

using namespace examples;

TEST_CASE("a number in [0, 1) is the upper 53 bits of the raw output") {
  Generator generator;
  generator.discard(9999);
  CHECK(uniform(generator) == static_cast<double>(9981545732273789042U >> 11) / 9007199254740992.0);  // the standard's
  for (int i = 0; i < 1000; ++i) {
    const double value = uniform(generator, -2, 3);
    CHECK(value >= -2);
    CHECK(value < 3);
  }
}

TEST_CASE("below() reaches every number about equally often") {
  Generator generator(1);
  std::array<int, 7> seen{};
  for (int i = 0; i < 7000; ++i) ++seen.at(below(generator, 7));
  for (const int count : seen) {
    CHECK(count > 850);
    CHECK(count < 1150);
  }
  CHECK(below(generator, 1) == 0);
}

TEST_CASE("shuffle() permutes, by the seed") {
  std::vector<int> values(100);
  std::iota(values.begin(), values.end(), 0);
  const std::vector<int> sorted = values;
  std::vector<int> again = values, other = values;
  const auto by = [](std::vector<int>& which, unsigned seed) {
    Generator generator(seed);
    shuffle(std::span(which), generator);
  };
  by(values, 1);
  by(again, 1);
  by(other, 2);
  CHECK(values == again);
  CHECK(values != other);
  CHECK(values != sorted);
  std::ranges::sort(values);
  CHECK(values == sorted);
  std::array<int, 3> first{};  // where each of three comes to lie first
  for (unsigned seed = 0; seed < 3000; ++seed) {
    std::vector<int> three{0, 1, 2};
    by(three, seed);
    ++first.at(static_cast<std::size_t>(three[0]));
  }
  for (const int count : first) CHECK(std::abs(count - 1000) < 120);
}
