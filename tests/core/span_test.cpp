// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/core/span.hpp"

#include <doctest/doctest.h>

#include <array>
#include <ranges>
#include <span>
#include <vector>

namespace {

/// Memory that the host may not touch.
struct Far {
  using stream = distx::HostStream;
  using event = distx::HostEvent;
  static constexpr std::string_view name = "far";
  static constexpr bool host_accessible = false;
};
/// Memory elsewhere that the host may touch.
struct Near : Far {
  static constexpr bool host_accessible = true;
};
struct NoSpace {
  using stream = distx::HostStream;
};
static_assert(distx::MemorySpace<distx::Host> && distx::MemorySpace<Far> && !distx::MemorySpace<NoSpace>);
static_assert(distx::HostAccessible<distx::Host> && distx::HostAccessible<Near> && !distx::HostAccessible<Far>);

using distx::Span;
static_assert(std::ranges::view<Span<float>> && std::ranges::borrowed_range<Span<float>>);
static_assert(std::convertible_to<Span<float>, std::span<float>>);  // also one that a function has returned
template <class From, class To>
concept Converts = std::convertible_to<From, To>;

// Containers become spans of the host's memory, and of no other, not even where the host may touch it.
static_assert(Converts<std::vector<float>&, Span<float>> && Converts<std::array<float, 3>&, Span<float>>);
static_assert(Converts<float (&)[3], Span<float>> && Converts<const std::vector<float>&, Span<const float>>);
static_assert(!Converts<std::vector<float>&, Span<float, Far>> && !Converts<float (&)[3], Span<const float, Far>>);
static_assert(!Converts<std::vector<float>&, Span<float, Near>>);
static_assert(!Converts<const std::vector<float>&, Span<float>>);
static_assert(!Converts<std::vector<float>&, Span<double>>);
static_assert(!Converts<float*, Span<float>> && !Converts<float&, Span<float>>);

// Const may be added, never taken away; a space never changes.
static_assert(Converts<Span<float>, Span<const float>> && !Converts<Span<const float>, Span<float>>);
static_assert(Converts<Span<float, Far>, Span<const float, Far>>);
static_assert(!Converts<Span<float>, Span<float, Far>> && !Converts<Span<float, Far>, Span<float>>);
static_assert(!Converts<Span<float>&, Span<float, Near>> && !Converts<Span<float>, Span<const float, Near>>);
static_assert(!Converts<Span<float, Near>&, Span<float>> && !Converts<Span<float, Near>, Span<const float>>);
static_assert(!Converts<Span<int>, Span<float>>);

// The host reads no element of memory that it may not touch.
template <class S>
concept Readable = requires(S span) {
  span[0];
  span.begin();
  span.end();
};
static_assert(Readable<Span<float>> && Readable<Span<float, Near>> && !Readable<Span<float, Far>>);

// Types may be erased, with their const and their space, and never come back by themselves.
using distx::AnyElement;
static_assert(Converts<Span<float>, Span<AnyElement>> && Converts<Span<const float>, Span<const AnyElement>>);
static_assert(Converts<Span<float>, Span<const AnyElement>> && !Converts<Span<const float>, Span<AnyElement>>);
static_assert(!Converts<Span<float, Far>, Span<AnyElement>> && Converts<Span<float, Far>, Span<AnyElement, Far>>);
static_assert(Converts<Span<AnyElement>, Span<const AnyElement>>);
static_assert(!Converts<Span<const AnyElement>, Span<AnyElement>> && !Converts<Span<AnyElement>, Span<float>>);

TEST_CASE("a span refers to its container's memory") {
  std::vector<int> values{1, 2, 3, 4, 5};
  const Span<int> all = values;
  CHECK(all.data() == values.data());
  CHECK(all.size() == 5);
  CHECK(all.size_bytes() == 5 * sizeof(int));
  CHECK(!all.empty());
  const auto part = all.subspan(1, 3);
  CHECK(part.data() == &values[1]);
  CHECK(part.size() == 3);
  CHECK(part[2] == 4);
  CHECK(all.subspan(3).data() == &values[3]);
  CHECK(all.subspan(3).size() == 2);
  CHECK(all.subspan(5).empty());
  CHECK(all.first(2).size() == 2);
  CHECK(all.first(2).data() == values.data());
  int sum = 0;
  for (const int value : part) sum += value;
  CHECK(sum == 9);
  const Span<const int> fixed = all;
  CHECK(fixed.data() == values.data());
  CHECK(Span<int>().empty());
  CHECK(Span<int>().data() == nullptr);
}

TEST_CASE("an erased span keeps the type, the size and the address") {
  struct Triple {
    float x, y, z;
  };
  std::vector<Triple> values(4);
  const Span<AnyElement> any = Span<Triple>(values);
  CHECK(any.data() == values.data());
  CHECK(any.size() == 4);
  CHECK(any.element_bytes() == 12);
  CHECK(any.size_bytes() == 48);
  CHECK(any.type() == distx::ElementType::bytes);
  CHECK(any.subspan(1, 2).bytes() == any.bytes() + 12);
  CHECK(any.subspan(1, 2).size_bytes() == 24);
  std::vector<double> doubles(2);
  const Span<const AnyElement> fixed = Span<const double>(doubles);
  CHECK(fixed.type() == distx::ElementType::f64);
  CHECK(fixed.size_bytes() == 16);
  CHECK(!fixed.empty());
}

}  // namespace
