// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/core/element.hpp"

#include <doctest/doctest.h>

#include <string>

namespace {

using distx::element_type;
using distx::ElementType;

struct Point {
  float x, y;
};
struct Owner {
  std::string name;
};
enum class Color : std::uint8_t { red };

// Elements by size and sign, regardless of their name.
static_assert(element_type<std::int8_t> == ElementType::i8 && element_type<std::uint8_t> == ElementType::u8);
static_assert(element_type<std::int16_t> == ElementType::i16 && element_type<std::uint16_t> == ElementType::u16);
static_assert(element_type<std::int32_t> == ElementType::i32 && element_type<std::uint32_t> == ElementType::u32);
static_assert(element_type<std::int64_t> == ElementType::i64 && element_type<std::uint64_t> == ElementType::u64);
static_assert(element_type<long> == ElementType::i64 && element_type<long long> == ElementType::i64);
static_assert(element_type<unsigned long> == ElementType::u64 && element_type<unsigned long long> == ElementType::u64);
static_assert(element_type<distx::bfloat16> == ElementType::bf16 && element_type<distx::float16> == ElementType::f16);
static_assert(element_type<distx::float8_e4m3> == ElementType::f8e4m3);
static_assert(element_type<const distx::float8_e5m2> == ElementType::f8e5m2);
static_assert(element_type<float> == ElementType::f32 && element_type<double> == ElementType::f64);
static_assert(element_type<const float> == ElementType::f32);
static_assert(element_type<Point> == ElementType::bytes && element_type<bool> == ElementType::bytes);

// Moved but not reduced; neither.
static_assert(distx::Transferable<Point> && !distx::Element<Point>);
static_assert(distx::Transferable<bool> && !distx::Element<bool>);
static_assert(distx::Transferable<Color> && !distx::Element<Color>);
static_assert(distx::Transferable<long double> && !distx::Element<long double>);
static_assert(!distx::Transferable<Owner> && !distx::Transferable<int&> && !distx::Transferable<void>);
static_assert(distx::Element<char> && distx::Element<const double>);

static_assert(distx::FloatingElement<distx::bfloat16> && distx::FloatingElement<distx::float16>);
static_assert(distx::FloatingElement<float> && distx::FloatingElement<double>);
static_assert(!distx::FloatingElement<distx::float8_e4m3> && !distx::FloatingElement<distx::float8_e5m2>);
static_assert(distx::FractionalElement<distx::float8_e4m3> && distx::FractionalElement<distx::float8_e5m2>);
static_assert(distx::FractionalElement<distx::bfloat16> && distx::FractionalElement<double>);
static_assert(!distx::FractionalElement<std::int8_t> && !distx::FractionalElement<bool>);
static_assert(!distx::FloatingElement<int> && !distx::FloatingElement<long double>);

static_assert(std::same_as<distx::accumulator_t<distx::bfloat16>, float>);
static_assert(std::same_as<distx::accumulator_t<const distx::float16>, float>);
static_assert(std::same_as<distx::accumulator_t<distx::float8_e4m3>, float>);
static_assert(std::same_as<distx::accumulator_t<const distx::float8_e5m2>, float>);
static_assert(std::same_as<distx::accumulator_t<double>, double>);
static_assert(std::same_as<distx::accumulator_t<const float>, float>);
static_assert(std::same_as<distx::accumulator_t<std::int8_t>, std::int8_t>);

template <class T>
void check_size_and_name(std::string_view name) {
  CHECK(distx::is_narrow_float(element_type<T>) == (sizeof(T) <= 2 && !std::is_integral_v<T>));
  CHECK(distx::size_of(element_type<T>) == sizeof(T));
  CHECK(distx::name_of(element_type<T>) == name);
}

TEST_CASE("every element type has its size and name") {
  check_size_and_name<std::int8_t>("int8");
  check_size_and_name<std::uint8_t>("uint8");
  check_size_and_name<std::int16_t>("int16");
  check_size_and_name<std::uint16_t>("uint16");
  check_size_and_name<std::int32_t>("int32");
  check_size_and_name<std::uint32_t>("uint32");
  check_size_and_name<std::int64_t>("int64");
  check_size_and_name<std::uint64_t>("uint64");
  check_size_and_name<distx::float8_e4m3>("float8_e4m3");
  check_size_and_name<distx::float8_e5m2>("float8_e5m2");
  check_size_and_name<distx::bfloat16>("bfloat16");
  check_size_and_name<distx::float16>("float16");
  check_size_and_name<float>("float32");
  check_size_and_name<double>("float64");
  CHECK(distx::name_of(ElementType::bytes) == "bytes");
  CHECK(distx::size_of(ElementType::bytes) == 1);
  CHECK(!distx::is_narrow_float(ElementType::bytes));
}

}  // namespace
