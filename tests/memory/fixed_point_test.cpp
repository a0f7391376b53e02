// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/memory/fixed_point.hpp>

#include <vector>

namespace {

using distx::FixedPointSum;
using distx::HostStream;
using distx::Span;

template <class T>
std::vector<T> some(std::size_t n, double size) {
  std::vector<T> values(n);
  for (std::size_t i = 0; i < n; ++i)
    values[i] = static_cast<T>(static_cast<float>(size * std::sin(1.0 + 0.7 * static_cast<double>(i))));
  return values;
}

}  // namespace

TEST_CASE_TEMPLATE("largest_magnitude finds the largest value and non-finite values at any index", T, float, double,
                   distx::bfloat16) {
  for (std::size_t n = 0; n < 20; ++n)
    for (std::size_t at = 0; at < n; ++at)
      for (const double sign : {1.0, -1.0}) {
        auto values = some<T>(n, 1);
        values[at] = static_cast<T>(static_cast<float>(4 * sign));
        CHECK(distx::largest_magnitude(HostStream{}, Span<T>(values)) == 4);
        for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
          values[at] = static_cast<T>(static_cast<float>(sign) * bad);
          CHECK(std::isinf(distx::largest_magnitude(HostStream{}, Span<T>(values))));
        }
      }
  CHECK(distx::largest_magnitude(HostStream{}, Span<T>()) == 0);
}

TEST_CASE_TEMPLATE("a fixed-point sum is independent of partitioning and order, and exact to its unit", T, float,
                   double, distx::bfloat16) {
  for (const double size : {1e-30, 1e-3, 1.0, 3e7}) {
    auto values = some<T>(70000, size);  // more than one block
    const Span<T> all(values);
    const int exponent = FixedPointSum::exponent_for(distx::largest_magnitude(HostStream{}, all));
    const FixedPointSum whole = distx::fixed_point_squares(HostStream{}, all, exponent);
    long double exact = 0;
    for (const auto value : values) {
      const auto x = static_cast<long double>(static_cast<distx::accumulator_t<T>>(value));
      exact += x * x;
    }
    CHECK(whole.value(exponent) == doctest::Approx(static_cast<double>(exact)).epsilon(1e-13));
    CHECK(whole.root(exponent) == doctest::Approx(static_cast<double>(std::sqrt(exact))).epsilon(1e-13));
    CHECK(distx::fixed_point_norm(HostStream{}, all) == whole.root(exponent));
    for (const std::size_t cut : {1u, 3u, 35000u, 69999u}) {
      FixedPointSum parts;
      parts += distx::fixed_point_squares(HostStream{}, all.subspan(cut, all.size() - cut), exponent);
      parts += distx::fixed_point_squares(HostStream{}, all.first(cut), exponent);
      CHECK(parts == whole);
    }
  }
}

TEST_CASE("fixed_point_norm is finite at the ends of the range") {
  const auto norm = [](std::vector<double> values) {
    return distx::fixed_point_norm(HostStream{}, Span<double>(values));
  };
  CHECK(norm({}) == 0);
  CHECK(norm({0, -0.0}) == 0);
  CHECK(norm({3, 4}) == 5);
  CHECK(norm({3e200, -4e200}) == doctest::Approx(5e200).epsilon(1e-14));
  CHECK(norm({3e-200, 4e-200}) == doctest::Approx(5e-200).epsilon(1e-14));
  CHECK(std::isinf(norm({1, std::numeric_limits<double>::quiet_NaN()})));
}
