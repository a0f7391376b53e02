// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/memory/buffer.hpp"

#include <doctest/doctest.h>

#include <cstdint>

namespace {

using distx::Buffer;

static_assert(!std::is_copy_constructible_v<Buffer<float>> && !std::is_copy_assignable_v<Buffer<float>>);
static_assert(std::is_nothrow_move_constructible_v<Buffer<float>> && std::is_nothrow_move_assignable_v<Buffer<float>>);
static_assert(std::is_convertible_v<Buffer<float>&, distx::Span<float>>);
static_assert(std::is_convertible_v<Buffer<float>&, distx::Span<const float>>);

TEST_CASE_TEMPLATE("a buffer starts on a cache line and contains zeros", T, char, float, double, distx::bfloat16) {
  for (const std::size_t size : std::initializer_list<std::size_t>{1, 3, 64, 1000}) {
    const Buffer<T> buffer(size);
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64 == 0);
    CHECK(buffer.size() == size);
    CHECK(buffer.span().size() == size);
    int not_zero = 0;
    for (const T& value : buffer) not_zero += static_cast<float>(value) != 0 ? 1 : 0;
    CHECK(not_zero == 0);
  }
}

TEST_CASE("an empty buffer has no memory") {
  const Buffer<float> none;
  CHECK(none.size() == 0);
  CHECK(none.data() == nullptr);
  CHECK(Buffer<float>(0).data() == nullptr);
  CHECK(Buffer<float>(0).span().empty());
}

TEST_CASE("moving a buffer moves its memory") {
  Buffer<int> first(5);
  first[4] = 42;
  int* const place = first.data();
  Buffer<int> second(std::move(first));
  CHECK(second.data() == place);
  CHECK(second[4] == 42);
  CHECK(first.size() == 0);
  CHECK(first.data() == nullptr);
  Buffer<int> third(9);
  third = std::move(second);
  CHECK(third.data() == place);
  CHECK(third.size() == 5);
  CHECK(second.size() == 0);
}

TEST_CASE("a self-move leaves a buffer unchanged") {
  Buffer<int> buffer(5);
  int* const place = buffer.data();
  auto& same = buffer;
  buffer = std::move(same);
  CHECK(buffer.data() == place);
  CHECK(buffer.size() == 5);
}

TEST_CASE("an allocation that fails throws MemoryError") {
  CHECK_THROWS_WITH_AS(Buffer<double>(std::numeric_limits<std::size_t>::max() / 4),
                       "distx: cannot allocate host memory for 4611686018427387903 elements of 8 bytes",
                       distx::MemoryError);
  CHECK_THROWS_AS(Buffer<char>(std::numeric_limits<std::size_t>::max() / 2), distx::MemoryError);
  // So much that rounding up to whole lines would begin at nothing again.
  CHECK_THROWS_AS(Buffer<char>(std::numeric_limits<std::size_t>::max() - 7), distx::MemoryError);
}

}  // namespace
