// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/memory/operations.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace {

constexpr distx::HostStream stream;
using distx::Span;

TEST_CASE("copy") {
  const std::vector<float> from{1, 2, 3};
  std::vector<float> to(3);
  distx::copy(stream, Span<float>(to), from);
  CHECK(to == from);
  distx::copy(stream, Span<float>(to), to);
  CHECK(to == from);
  distx::copy(stream, Span<float>(), Span<const float>());
  CHECK_THROWS_WITH_AS(distx::copy(stream, Span<float>(to).first(2), from),
                       "distx: copy: the destination has 2 elements, the source 3: they must have the same length",
                       distx::InvalidArgument);
  CHECK(to == from);
}

TEST_CASE("fill") {
  std::vector<double> values(5, 1);
  distx::fill(stream, Span<double>(values).subspan(1, 3), 7);
  CHECK(values == std::vector<double>{1, 7, 7, 7, 1});
  std::vector<distx::bfloat16> small(2);
  distx::fill(stream, Span<distx::bfloat16>(small), distx::bfloat16(1.5f));
  CHECK(small[1] == 1.5f);
}

TEST_CASE("cast rounds to nearest and widens exactly") {
  const std::vector<float> from{1.0f, 256.0f, 257.0f, 259.0f, -0.5f};
  std::vector<distx::bfloat16> narrow(5);
  distx::cast(stream, Span<distx::bfloat16>(narrow), Span<const float>(from));
  std::vector<double> wide(5);
  distx::cast(stream, Span<double>(wide), Span<const distx::bfloat16>(narrow));
  CHECK(wide == std::vector<double>{1, 256, 256, 260, -0.5});
  std::vector<distx::float16> half(5);
  distx::cast(stream, Span<distx::float16>(half), Span<const distx::bfloat16>(narrow));
  CHECK(half[3] == 260.0f);
  std::vector<distx::float8_e5m2> shortest(5);
  distx::cast(stream, Span<distx::float8_e5m2>(shortest), Span<const double>(wide));
  distx::cast(stream, Span<distx::float16>(half), Span<const distx::float8_e5m2>(shortest));
  CHECK(half[1] == 256.0f);
  CHECK(half[4] == -0.5f);
  std::vector<distx::float8_e4m3> other(5);
  distx::cast(stream, Span<distx::float8_e4m3>(other), Span<const distx::float8_e5m2>(shortest));
  CHECK(other[3] == 256.0f);
  std::vector<double> exact{0.1, 1e300};
  std::vector<double> same(2);
  distx::cast(stream, Span<double>(same), Span<const double>(exact));
  CHECK(same == exact);
  std::vector<int> integers{-3, 16777217};
  distx::cast(stream, Span<double>(same), Span<const int>(integers));
  CHECK(same == std::vector<double>{-3, 16777217});
  CHECK_THROWS_WITH_AS(distx::cast(stream, Span<double>(wide), Span<const double>(exact)),
                       "distx: cast: the destination has 5 elements, the source 2: they must have the same length",
                       distx::InvalidArgument);
}

TEST_CASE("sum_of_squares adds in double") {
  const std::vector<float> values{3, 4, 1e-4f};
  const double small = 1e-4f;
  CHECK(distx::sum_of_squares(stream, Span<const float>(values)) == 25 + small * small);
  const std::vector<distx::bfloat16> many(100000, distx::bfloat16(1.0f));
  CHECK(distx::sum_of_squares(stream, Span<const distx::bfloat16>(many)) == 100000);
  CHECK(distx::sum_of_squares(stream, Span<const float>()) == 0);
}

}  // namespace
