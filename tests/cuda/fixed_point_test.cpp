// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Norms of values in a GPU's memory against the host's.
#include <distx/cuda/fixed_point.hpp>

#include "cuda/placed.hpp"

namespace {

using distx::bfloat16;
using distx::Cuda;
using distx::CudaStream;
using distx::FixedPointSum;
using distx::float16;
using distx::HostStream;
using distx::Span;

TEST_CASE_TEMPLATE("norms have the host's bits", T, float, double, bfloat16, float16) {
  const CudaStream stream;
  for (const std::size_t size : {0u, 1u, 3u, 4u, 31u, 70001u, 1000003u}) {
    auto values = wave<T>(size);
    if (size > 20) values[17] = static_cast<T>(-1000.0f), values[3] = static_cast<T>(1e-4f);
    const Span<T> host(values);
    const Placed<T> placed(values, size % 4);
    const double largest = distx::largest_magnitude(HostStream(), host);
    CHECK(largest_magnitude(stream, placed.span()) == largest);
    const int exponent = FixedPointSum::exponent_for(largest);
    CHECK(fixed_point_squares(stream, placed.in(), exponent) ==
          distx::fixed_point_squares(HostStream(), host, exponent));
    CHECK(fixed_point_squares(stream, placed.span(), exponent + 3) ==
          distx::fixed_point_squares(HostStream(), host, exponent + 3));
    CHECK(fixed_point_norm(stream, placed.span()) == distx::fixed_point_norm(HostStream(), host));
  }
}

TEST_CASE("norms of parts add up to the bits of the whole") {
  const CudaStream stream;
  const auto values = wave<float>(100003);
  const Placed<float> placed(values);
  const double whole = fixed_point_norm(stream, placed.span());
  for (const std::size_t cut : {0u, 1u, 3u, 50000u, 100003u}) {
    const auto first = placed.span().subspan(0, cut), rest = placed.span().subspan(cut, values.size() - cut);
    const distx::Buffer<double, Cuda> largest(1, stream);
    const distx::Buffer<std::uint64_t, Cuda> sum(2, stream);
    largest_magnitude(stream, first, largest.span());
    largest_magnitude(stream, rest, largest.span());
    fixed_point_squares(stream, rest, Span<const double, Cuda>(largest), sum.span());
    fixed_point_squares(stream, first, Span<const double, Cuda>(largest), sum.span());
    double most = 0;
    std::uint64_t parts[2] = {};
    copy(stream, Span<double>(&most, 1), Span<const double, Cuda>(largest));
    copy(stream, Span<std::uint64_t>(parts, 2), Span<const std::uint64_t, Cuda>(sum));
    stream.synchronize();
    FixedPointSum total;
    total += {parts[0], parts[1]};
    CHECK(total.root(FixedPointSum::exponent_for(most)) == whole);
  }
}

TEST_CASE("norms of several arrays, some of them in parts, have the host's bits") {
  const CudaStream stream;
  constexpr std::size_t count = 4;
  std::vector<float> values[count] = {wave<float>(70001), wave<float>(3), wave<float>(1), wave<float>(9000)};
  for (float& value : values[1]) value *= 1e-20f;
  std::vector<Placed<float>> placed;
  for (std::size_t i = 0; i < count; ++i) placed.emplace_back(values[i], i);
  auto of_low = wave<bfloat16>(5000);
  const Placed<bfloat16> low(of_low, 1);
  std::vector<distx::detail::ReducedPiece<Cuda>> pieces{{low.span(), count}};
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t cut = values[i].size() / 3;
    pieces.push_back({placed[i].span().subspan(cut, values[i].size() - cut), i});
    pieces.push_back({placed[i].span().first(cut), i});
  }
  const distx::Buffer<double, Cuda> largest(count + 1, stream);
  const distx::Buffer<std::uint64_t, Cuda> parts(2 * (count + 1), stream);
  const std::span<const distx::detail::ReducedPiece<Cuda>> all(pieces);
  distx::detail::largest_magnitudes(stream, all, largest.span());
  distx::detail::fixed_point_squares_of_each(stream, all, largest.span(), parts.span());
  double most[count + 1] = {};
  std::uint64_t sums[2 * (count + 1)] = {};
  copy(stream, Span<double>(most, count + 1), Span<const double, Cuda>(largest));
  copy(stream, Span<std::uint64_t>(sums, 2 * (count + 1)), Span<const std::uint64_t, Cuda>(parts));
  stream.synchronize();
  for (std::size_t i = 0; i <= count; ++i) {
    FixedPointSum total;
    total += {sums[2 * i], sums[2 * i + 1]};
    const double norm = i < count ? distx::fixed_point_norm(HostStream(), Span<float>(values[i]))
                                  : distx::fixed_point_norm(HostStream(), Span<bfloat16>(of_low));
    CHECK(total.root(FixedPointSum::exponent_for(most[i])) == norm);
  }
}

TEST_CASE_TEMPLATE("a NaN or an infinity makes the largest magnitude infinite", T, float, double, bfloat16, float16) {
  const CudaStream stream;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float odd : {infinity, -infinity, std::nanf("")})
    for (const std::size_t at : {0u, 998u}) {
      auto values = wave<T>(1000);
      values[at] = static_cast<T>(odd);
      const Placed<T> placed(values, 1);
      CHECK(largest_magnitude(stream, placed.span()) == std::numeric_limits<double>::infinity());
      CHECK(fixed_point_norm(stream, placed.span()) == std::numeric_limits<double>::infinity());
    }
}

TEST_CASE("norms of very large and very small numbers have the host's bits") {
  const CudaStream stream;
  for (const double size : {1e300, 1e-300, 0x1p1023, 5e-324, 0.0}) {
    std::vector<double> values(100, size);
    const Placed<double> placed(values);
    CHECK(fixed_point_norm(stream, placed.span()) == distx::fixed_point_norm(HostStream(), Span<double>(values)));
  }
}

}  // namespace
