// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Each operation of a GPU's memory against the host's on the same values.
#include <cuda_fp8.h>
#include <distx/cuda/detail/copy_box.hpp>
#include <distx/cuda/detail/operations.hpp>
#include <distx/memory/operations.hpp>
#include <distx/tensor/detail/copy_box.hpp>

#include <array>

#include "cuda/placed.hpp"
#include "cuda/tensor_kernels.hpp"

namespace {

using distx::bfloat16;
using distx::Cuda;
using distx::CudaStream;
using distx::float16;
using distx::float8_e4m3;
using distx::float8_e5m2;
using distx::Host;
using distx::HostStream;
using distx::Span;

/// f(size, offset of the first array, offset of the second).
template <class F>
void everywhere(F&& f) {
  for (const std::size_t size : {0u, 1u, 3u, 4u, 2048u, 4096u})
    for (const std::size_t offset : {0u, 1u, 2u, 3u})
      for (const std::size_t other : {offset, std::size_t{2}}) f(size, offset, other);
  for (const std::size_t other : {1u, 3u, 4u, 5u, 6u, 7u, 9u}) f(std::size_t{9001}, std::size_t{0}, other);
  f(std::size_t{1000003}, std::size_t{1}, std::size_t{1});
  f(std::size_t{1000003}, std::size_t{0}, std::size_t{3});
}

TEST_CASE_TEMPLATE("cast has the host's bits", Pair, std::pair<bfloat16, float>, std::pair<float, bfloat16>,
                   std::pair<float16, float>, std::pair<float, float16>, std::pair<float, double>,
                   std::pair<double, float>, std::pair<bfloat16, float16>, std::pair<float16, double>,
                   std::pair<float8_e4m3, float>, std::pair<float, float8_e4m3>, std::pair<float8_e5m2, bfloat16>,
                   std::pair<float16, float8_e5m2>, std::pair<float8_e5m2, double>) {
  using To = typename Pair::first_type;
  using From = typename Pair::second_type;
  const CudaStream stream;
  everywhere([&](std::size_t size, std::size_t offset, std::size_t other) {
    const auto from = wave<From>(size);
    std::vector<To> wanted(size);
    distx::cast(HostStream(), Span<To>(wanted), Span<const From>(from));
    const Placed<To> to(wave<To>(size, 1), offset);
    const Placed<From> given(from, other);
    cast(stream, to.span(), given.in());
    CHECK(same_bits(to.values(stream), wanted));
  });
}

TEST_CASE("cast of NaN, infinite, subnormal and too large values has the host's result") {
  const CudaStream stream;
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> from{infinity, -infinity, 1e30f, -1e30f, 65519.0f, 65520.0f, 6e-8f, 3e-8f, 1e-40f, -0.0f};
  std::vector<float16> wanted(from.size());
  distx::cast(HostStream(), Span<float16>(wanted), Span<const float>(from));
  const Placed<float16> to(std::vector<float16>(from.size()));
  cast(stream, to.span(), Placed<float>(from).in());
  CHECK(same_bits(to.values(stream), wanted));
  const Placed<bfloat16> none(std::vector<bfloat16>(3));
  cast(stream, none.span(), Placed<float>(std::vector<float>(3, std::nanf(""))).in());
  for (const bfloat16 value : none.values(stream)) CHECK(std::isnan(static_cast<float>(value)));
}

/// Returns the code of CUDA's type for a float.
template <class T>
std::uint8_t vendors_bits(float value) {
  if constexpr (std::is_same_v<T, float8_e4m3>)
    return __nv_fp8_e4m3(value).__x;
  else
    return __nv_fp8_e5m2(value).__x;
}

TEST_CASE_TEMPLATE("cast to 8 bits and back has the host's bits and CUDA's", T, float8_e4m3, float8_e5m2) {
  const CudaStream stream;
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> from{infinity, -infinity, std::nanf(""), -std::nanf(""), 464.0f, -1e30f, 61440.0f, 1e-40f, -0.0f};
  for (float magnitude = 0x1p-20f; magnitude < 0x1p18f; magnitude *= 1.0078125f) {
    from.push_back(magnitude);
    from.push_back(-magnitude);
  }
  std::vector<T> wanted(from.size());
  distx::cast(HostStream(), Span<T>(wanted), Span<const float>(from));
  for (std::size_t i = 0; i < from.size(); ++i) CHECK(wanted[i].bits() == vendors_bits<T>(from[i]));
  const Placed<T> to(std::vector<T>(from.size()));
  cast(stream, to.span(), Placed<float>(from).in());
  CHECK(same_bits(to.values(stream), wanted));
  std::vector<T> codes;
  for (unsigned code = 0; code < 256; ++code) codes.push_back(T::from_bits(static_cast<std::uint8_t>(code)));
  std::vector<float> numbers(256);
  distx::cast(HostStream(), Span<float>(numbers), Span<const T>(codes));
  const Placed<float> back(std::vector<float>(256));
  cast(stream, back.span(), Placed<T>(codes).in());
  const auto found = back.values(stream);
  for (std::size_t i = 0; i < 256; ++i)
    CHECK((found[i] == numbers[i] || (std::isnan(found[i]) && std::isnan(numbers[i]))));
  fill(stream, to.span(), T(1.5f));
  CHECK(same_bits(to.values(stream), std::vector<T>(from.size(), T(1.5f))));
  copy(stream, to.span(), Placed<T>(wanted).in());
  CHECK(same_bits(to.values(stream), wanted));
}

static_assert(distx::cuda::detail::Castable<float8_e4m3, float8_e4m3> &&
              distx::cuda::detail::Castable<double, const float8_e5m2>);
static_assert(!distx::cuda::detail::Castable<float8_e4m3, float8_e5m2> && !distx::cuda::detail::Castable<float, int>);

TEST_CASE_TEMPLATE("fill, scale and add have the host's bits", T, float, double, bfloat16, float16) {
  const CudaStream stream;
  everywhere([&](std::size_t size, std::size_t offset, std::size_t other) {
    auto wanted = wave<T>(size);
    const auto from = wave<T>(size, 2);
    const Placed<T> to(wanted, offset);
    const Placed<T> given(from, other);
    distx::scale(HostStream(), Span<T>(wanted), 0.3);
    scale(stream, to.span(), 0.3);
    distx::add(HostStream(), Span<T>(wanted), Span<const T>(from));
    add(stream, to.span(), given.in());
    CHECK(same_bits(to.values(stream), wanted));
    fill(stream, to.span(), static_cast<T>(1.75f));
    CHECK(same_bits(to.values(stream), std::vector<T>(size, static_cast<T>(1.75f))));
    fill(stream, to.span(), T{});
    CHECK(same_bits(to.values(stream), std::vector<T>(size)));
  });
}

TEST_CASE_TEMPLATE("mix equals the host's up to rounding", Pair, std::pair<float, float>, std::pair<float, bfloat16>,
                   std::pair<double, double>, std::pair<float16, float>) {
  using To = typename Pair::first_type;
  using From = typename Pair::second_type;
  const CudaStream stream;
  everywhere([&](std::size_t size, std::size_t offset, std::size_t other) {
    auto wanted = wave<To>(size);
    const auto from = wave<From>(size, 2);
    const Placed<To> to(wanted, offset);
    const Placed<From> given(from, other);
    distx::mix(HostStream(), Span<To>(wanted), Span<const From>(from), 0.9);
    mix(stream, to.span(), given.in(), 0.9);
    CHECK(roundings_between(to.values(stream), wanted) <= 2);
  });
}

TEST_CASE("fill takes integers, and cast to the same type copies") {
  const CudaStream stream;
  const Placed<std::int64_t> whole(std::vector<std::int64_t>(37), 1);
  fill(stream, whole.span(), std::int64_t{-5000000000});
  CHECK(whole.values(stream) == std::vector<std::int64_t>(37, -5000000000));
  const Placed<std::int16_t> half(std::vector<std::int16_t>(37), 3);
  fill(stream, half.span(), std::int16_t{-2});
  CHECK(half.values(stream) == std::vector<std::int16_t>(37, -2));
  const Placed<float> from(wave<float>(37), 1), to(std::vector<float>(37), 2);
  cast(stream, to.span(), from.in());
  CHECK(same_bits(to.values(stream), wave<float>(37)));
}

TEST_CASE_TEMPLATE("sum_of_squares equals the host's up to rounding, with the same bits wherever the array begins", T,
                   float, double, bfloat16, float16) {
  const CudaStream stream;
  for (const std::size_t size : {0u, 1u, 3u, 4u, 300u, 65537u, 1000003u}) {
    auto values = wave<T>(size);
    const Placed<T> placed(values, 1), elsewhere(values, 2);
    const double wanted = distx::sum_of_squares(HostStream(), Span<T>(values));
    const double found = sum_of_squares(stream, placed.span());
    CHECK(std::abs(found - wanted) <= 1e-12 * wanted);
    CHECK(sum_of_squares(stream, elsewhere.in()) == found);
  }
}

TEST_CASE("sum_of_squares adds in a fixed order: threads in warps, every 32nd warp, and these") {
  const CudaStream stream;
  constexpr std::size_t warps = 4096;
  const auto over_warp = [](std::array<double, 32> lanes) {
    for (std::size_t distance = 16; distance > 0; distance /= 2)
      for (std::size_t lane = 0; lane < distance; ++lane) lanes[lane] += lanes[lane + distance];
    return lanes[0];
  };
  std::vector<double> values(64 * warps);  // two of each thread
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<double>(i));
  std::array<double, 32> sums{};
  for (std::size_t warp = 0; warp < warps; ++warp) {
    std::array<double, 32> lanes{};
    for (std::size_t lane = 0; lane < 32; ++lane) {
      const double* const own = &values[64 * warp + 2 * lane];
      lanes[lane] = own[0] * own[0];
      lanes[lane] += own[1] * own[1];
    }
    sums[warp % 32] += over_warp(lanes);
  }
  const Placed<double> placed(values);
  CHECK(sum_of_squares(stream, placed.in()) == over_warp(sums));
}

TEST_CASE("functions registered in two files of kernels run, and all kernels can be loaded") {
  const CudaStream stream;
  distx::cuda::detail::load_kernels();
  const Placed<float> x(std::vector<float>(1001, 3)), cube(std::vector<float>(1001)), square(std::vector<float>(1001));
  for_elements(stream, tensor_kernels::Cube{}, cube.span(), x.in());
  for_elements(stream, tensor_kernels::Square{}, square.span(), x.in());
  CHECK(cube.values(stream) == std::vector<float>(1001, 27));
  CHECK(square.values(stream) == std::vector<float>(1001, 9));
}

TEST_CASE("operations reject different lengths") {
  const CudaStream stream;
  const Placed<float> three(std::vector<float>(3)), four(std::vector<float>(4));
  const Placed<double> wide(std::vector<double>(4));
  CHECK_THROWS_AS(add(stream, three.span(), four.in()), distx::InvalidArgument);
  CHECK_THROWS_AS(cast(stream, three.span(), wide.in()), distx::InvalidArgument);
  CHECK_THROWS_AS(mix(stream, three.span(), four.in(), 0.5), distx::InvalidArgument);
  CHECK_THROWS_AS(copy(stream, three.span(), four.in()), distx::InvalidArgument);
}

TEST_CASE("copy_box copies the words of any box, regardless of their width and number") {
  using distx::detail::Box;
  const CudaStream stream;
  const Box from{3, {0, 0, 0}, {9, 14, 40}};
  const Box parts[] = {{3, {1, 2, 3}, {7, 11, 33}},
                       {3, {0, 1, 0}, {9, 13, 1}},
                       {3, {2, 0, 8}, {1, 14, 32}},
                       {3, {0, 0, 5}, {9, 14, 2}},
                       {3, {4, 5, 6}, {1, 2, 3}}};
  for (const std::size_t bytes : {1u, 2u, 4u, 8u, 16u})
    for (const Box& part : parts)
      for (const Box& to : {part, from}) {
        std::vector<std::uint8_t> source(from.volume() * bytes), expected(to.volume() * bytes);
        for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::uint8_t>(i * 151 + i / 256);
        const auto copied = [&](const auto& copy_from, const auto& copy_to, auto on) {
          distx::detail::copy_box(on, reinterpret_cast<std::byte*>(copy_to.data()), to,
                                  reinterpret_cast<const std::byte*>(copy_from.data()), from, part, bytes);
        };
        const distx::Buffer<std::uint8_t, Cuda> there(source.size()), result(expected.size());
        distx::copy(stream, there.span(), Span<const std::uint8_t>(source));
        copied(source, std::span(expected), HostStream{});
        copied(there, result, distx::CudaStreamRef(stream));
        std::vector<std::uint8_t> found(expected.size());
        distx::copy(stream, Span<std::uint8_t>(found), Span<const std::uint8_t, Cuda>(result));
        stream.synchronize();
        CHECK(found == expected);
      }
}

}  // namespace
