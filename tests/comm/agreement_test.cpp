// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tests the fingerprints that ranks compare to check that they make the same call.
#include <doctest/doctest.h>

#include <array>
#include <cstring>

#include "distx/comm/calls/make_op.hpp"
#include "distx/comm/shared_memory/algorithms.hpp"
#include "distx/distx.hpp"

namespace agreement_test {

namespace {

using distx::calls::difference;
using distx::calls::Fingerprint;

std::vector<float> floats(100);
std::vector<std::int32_t> integers(100);

template <class Op>
Fingerprint all_reduce_of(std::size_t count, Op op) {
  const auto span = distx::Span<float>(floats).first(count);
  return distx::calls::fingerprint(erase(distx::calls::AllReduce<float, Op>{span, span, op, {}}));
}
Fingerprint broadcast_of(std::size_t count, int root) {
  return distx::calls::fingerprint(
      erase(distx::calls::Broadcast<float>{distx::Span<float>(floats).first(count), root, {}}));
}
Fingerprint all_gather_of(std::size_t count, distx::calls::Counts counts) {
  const distx::Span<float> all(floats);
  return distx::calls::fingerprint(erase(distx::calls::AllGather<float>{all.first(count), all, counts, {}}));
}

struct KeepsFirst {
  float operator()(float a, float) const { return a; }
};
struct KeepsSecond {
  float operator()(float, float b) const { return b; }
};

TEST_CASE("equal calls have equal fingerprints") {
  CHECK(all_reduce_of(10, distx::sum) == all_reduce_of(10, distx::sum));
  CHECK(broadcast_of(3, 1) == broadcast_of(3, 1));
  // Buffer addresses and source locations are not compared.
  std::vector<float> others(10);
  CHECK(distx::calls::fingerprint(erase(distx::calls::AllReduce<float, distx::Sum>{
            distx::Span<float>(others), distx::Span<float>(others), distx::sum, std::source_location::current()})) ==
        all_reduce_of(10, distx::sum));
  const std::vector<std::size_t> counts{3, 4};
  // With counts, each rank passes its own send length.
  CHECK(all_gather_of(3, counts) == all_gather_of(4, counts));
}

TEST_CASE("a difference between fingerprints is described with both values") {
  const auto told = [](const Fingerprint& mine, const Fingerprint& theirs) {
    CHECK(!(mine == theirs));
    return difference(mine, theirs, 2);
  };
  CHECK(told(all_reduce_of(10, distx::sum), broadcast_of(10, 0)) == "rank 2 calls broadcast, this rank all_reduce");
  CHECK(told(all_reduce_of(10, distx::sum), all_reduce_of(8, distx::sum)) == "rank 2 passes 8 elements, this rank 10");
  CHECK(told(all_reduce_of(10, distx::sum), all_reduce_of(10, distx::max)) ==
        "rank 2 reduces with another op, or with other values in it, than this rank");
  CHECK(told(all_reduce_of(10, KeepsFirst{}), all_reduce_of(10, KeepsSecond{})) ==
        "rank 2 reduces with another op, or with other values in it, than this rank");
  CHECK(told(broadcast_of(10, 0), broadcast_of(10, 3)) == "rank 2 names rank 3 as root, this rank 0");
  const distx::Span<std::int32_t> span(integers);
  const auto of_integers = distx::calls::fingerprint(erase(distx::calls::Broadcast<std::int32_t>{span, 0, {}}));
  CHECK(told(broadcast_of(100, 0), of_integers) == "rank 2 passes int32 elements, this rank float32");
  const std::vector<std::size_t> counts{3, 4}, others{4, 3};
  CHECK(told(all_gather_of(3, counts), all_gather_of(4, others)) ==
        "rank 2 passes other counts, or a list of other lengths or in another order, than this rank");
  CHECK(told(all_gather_of(3, counts), all_gather_of(3, {})).find("rank 2 passes ") == 0);
}

TEST_CASE("calls store ops by value, and their fingerprint contains the op's type and state") {
  struct Scale {
    float by;
    float operator()(float a, float b) const { return (a + b) * by; }
  };
  CHECK(all_reduce_of(10, Scale{3}) == all_reduce_of(10, Scale{3}));
  CHECK(all_reduce_of(10, Scale{2}) != all_reduce_of(10, Scale{3}));
  const auto op = distx::calls::AnyOp::make<float>(Scale{3});
  const float a[] = {1, 2}, b[] = {10, 20};
  const void* const sources[] = {a, b};
  float result[2];
  void* const targets[] = {result};
  op.reduce(targets, 1, sources, 2, 2, 2);
  CHECK(result[0] == 33);
  CHECK(result[1] == 66);
  CHECK(op.kind() == distx::OpKind::user);
  CHECK(!op.commutative());
  CHECK(op.type() == distx::ElementType::f32);
}

#if __has_builtin(__builtin_clear_padding)
static_assert(distx::detail::ClearsPadding<std::array<float, 2>>);
#endif

TEST_CASE("the state of an op of several floats is compared") {
  struct Line {
    float factor, offset;
    float operator()(float a, float b) const { return (a + b) * factor + offset; }
  };
  CHECK(all_reduce_of(10, Line{2, 3}) == all_reduce_of(10, Line{2, 3}));
  if (!distx::detail::state_is_compared<Line>) return;  // clang++ 16 cannot tell that it has no padding
  CHECK(all_reduce_of(10, Line{2, 3}) != all_reduce_of(10, Line{2, 4}));
  CHECK(all_reduce_of(10, Line{2, 3}) != all_reduce_of(10, Line{1, 3}));
  CHECK(all_reduce_of(10, Line{2, 0.0f}) != all_reduce_of(10, Line{2, -0.0f}));
}

TEST_CASE("the padding of an op's state is not compared, its members are") {
  struct Padded {
    char first;
    int second;
    char third;
    float operator()(float a, float) const { return a; }
  };
  const auto padded = [](int padding, char first, int second, char third) {
    Padded op;
    std::memset(&op, padding, sizeof op);
    op.first = first;
    op.second = second;
    op.third = third;
    return op;
  };
  const Padded zeros = padded(0, 'a', 2, 'c'), ones = padded(1, 'a', 2, 'c');
  REQUIRE(std::memcmp(&zeros, &ones, sizeof zeros) != 0);
  CHECK(all_reduce_of(10, zeros) == all_reduce_of(10, ones));
  if (!distx::detail::state_is_compared<Padded>) return;
  CHECK(all_reduce_of(10, zeros) != all_reduce_of(10, padded(0, 'b', 2, 'c')));
  CHECK(all_reduce_of(10, zeros) != all_reduce_of(10, padded(0, 'a', 3, 'c')));
  CHECK(all_reduce_of(10, zeros) != all_reduce_of(10, padded(0, 'a', 2, 'd')));
}

TEST_CASE("make_op returns the op of a kind and an element type, and refuses those that do not fit") {
  using distx::ElementType;
  using distx::OpKind;
  for (const auto type : {ElementType::i8, ElementType::u64, ElementType::bf16, ElementType::f32})
    for (const auto kind : {OpKind::sum, OpKind::product, OpKind::min, OpKind::max}) {
      const auto op = distx::calls::make_op(kind, type);
      CHECK(op.kind() == kind);
      CHECK(op.type() == type);
    }
  CHECK(distx::calls::make_op(OpKind::average, ElementType::f64).fingerprint() ==
        distx::calls::AnyOp::make<double>(distx::average).fingerprint());
  const auto reduced = [](OpKind kind) {
    const std::uint16_t a[] = {0b1100}, b[] = {0b1010};
    const void* const sources[] = {a, b};
    std::uint16_t result[1];
    void* const targets[] = {result};
    distx::calls::make_op(kind, ElementType::u16).reduce(targets, 1, sources, 2, 1, 2);
    return result[0];
  };
  CHECK(reduced(OpKind::bit_and) == 0b1000);
  CHECK(reduced(OpKind::bit_or) == 0b1110);
  CHECK(reduced(OpKind::bit_xor) == 0b0110);
  CHECK_THROWS_WITH_AS(
      static_cast<void>(distx::calls::make_op(OpKind::bit_or, ElementType::f32)),
      "distx: make_op: bit_or does not reduce elements of type float32: averages are of floating-point "
      "elements, bitwise ops of integers",
      distx::InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(distx::calls::make_op(OpKind::average, ElementType::i32)), distx::InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(distx::calls::make_op(OpKind::user, ElementType::i32)), distx::InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(distx::calls::make_op(OpKind::sum, ElementType::bytes)), distx::InvalidArgument);
}

TEST_CASE("a widened op works on accumulators and calls finish only if the number of ranks is given") {
  const auto narrow = distx::calls::AnyOp::make<distx::bfloat16>(distx::average);
  const auto wide = narrow.widened();
  CHECK(wide.type() == distx::ElementType::f32);
  CHECK(wide.kind() == distx::OpKind::average);
  CHECK(narrow.type() == distx::ElementType::bf16);
  CHECK(distx::calls::AnyOp::make<double>(distx::sum).widened().type() == distx::ElementType::f64);
  const float a[] = {256}, b[] = {3};
  const void* const sources[] = {a, b};
  float result[1], other[1];
  void* const targets[] = {result, other};
  wide.reduce(targets, 2, sources, 2, 1, 0);
  CHECK(result[0] == 259);
  CHECK(other[0] == 259);
  wide.reduce(targets, 2, sources, 2, 1, 2);
  CHECK(result[0] == 129.5f);
}

TEST_CASE_TEMPLATE("8-bit floats are reduced in float and rounded once", T, distx::float8_e4m3, distx::float8_e5m2) {
  // large + 1 is large, and so is large + 2.
  const float large = std::is_same_v<T, distx::float8_e4m3> ? 32 : 16;
  const T a(large), b(1.0f);
  const void* const sources[] = {&a, &b, &b, &b, &b};
  T result;
  void* const targets[] = {&result};
  const auto of = [&](const distx::calls::AnyOp& op) {
    op.reduce(targets, 1, sources, 5, 1, 5);
    return static_cast<float>(result);
  };
  CHECK(of(distx::calls::AnyOp::make<T>(distx::sum)) == large + 4);
  CHECK(of(distx::calls::AnyOp::make<T>(distx::average)) == static_cast<float>(T((large + 4) / 5)));
  CHECK(of(distx::calls::AnyOp::make<T>(distx::product)) == large);
  CHECK(of(distx::calls::AnyOp::make<T>(distx::min)) == 1);
  CHECK(of(distx::calls::AnyOp::make<T>(distx::max)) == large);
  CHECK(distx::calls::AnyOp::make<T>(distx::sum).type() == distx::element_type<T>);
  CHECK(distx::calls::AnyOp::make<T>(distx::sum).widened().type() == distx::ElementType::f32);
}

TEST_CASE("slices partition the bytes evenly on cache lines") {
  for (const std::size_t bytes : std::initializer_list<std::size_t>{0, 1, 8, 63, 64, 65, 1000, 100003, 800024}) {
    for (const int ranks : {1, 2, 3, 4, 7}) {
      std::size_t next = 0, largest = 0, smallest = bytes;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto slice = distx::detail::shared_memory::slice_of(bytes, rank, ranks);
        REQUIRE(slice.offset == next);
        REQUIRE((slice.offset % 64 == 0 || slice.bytes == 0));
        next += slice.bytes;
        largest = std::max(largest, slice.bytes);
        smallest = std::min(smallest, slice.bytes);
      }
      REQUIRE(next == bytes);
      // Slices differ by at most one cache line, except for the remainder in the last one.
      REQUIRE(largest - smallest <= 128);
    }
  }
}

TEST_CASE("counts are accepted as size_t, as MPI's int, and in braces") {
  distx::spawn(2, [](distx::ThreadConnector& connector) {
    distx::ThreadCommunicator comm(connector);
    const int mine = comm.rank() + 1;
    const std::vector<float> sent(static_cast<std::size_t>(mine), static_cast<float>(mine));
    const std::vector<float> expected{1, 2, 2};
    std::vector<float> received(3);
    distx::all_gather(comm, sent, received, std::vector<int>{1, 2});
    CHECK(received == expected);
    received.assign(3, 0);
    distx::all_gather(comm, sent, received, {1, 2});
    CHECK(received == expected);
    received.assign(3, 0);
    distx::all_gather(comm, sent, received, std::vector<std::size_t>{1, 2});
    CHECK(received == expected);
  });
}
TEST_CASE("a negative count is refused on the rank that passes it") {
  distx::SelfConnector alone;
  distx::SerialCommunicator comm(alone);
  std::vector<float> x(1);
  CHECK_THROWS_WITH_AS(distx::all_gather(comm, x, x, std::vector<int>{-3}),
                       doctest::Contains("counts[0] is -3: must not be negative"), distx::InvalidArgument);
}
TEST_CASE("block offsets and sizes follow from the counts") {
  const std::vector<std::size_t> counts{3, 0, 5};
  CHECK(distx::calls::block_offset(counts, 9, 0) == 0);
  CHECK(distx::calls::block_offset(counts, 9, 2) == 3);
  CHECK(distx::calls::block_count(counts, 9, 2) == 5);
  CHECK(distx::calls::total_count(counts, 9, 3) == 8);
  CHECK(distx::calls::block_offset({}, 9, 2) == 18);
  CHECK(distx::calls::block_count({}, 9, 2) == 9);
  CHECK(distx::calls::total_count({}, 9, 3) == 27);
}

}  // namespace

}  // namespace agreement_test

TEST_CASE_TEMPLATE("the bits of a reduction do not depend on the width of the lanes", T, float, double, distx::bfloat16,
                   distx::float16, std::int32_t) {
  const std::size_t most = 1500;
  std::vector<std::vector<T>> values(3, std::vector<T>(most + 1));
  for (std::size_t source = 0; source < 3; ++source)
    for (std::size_t i = 0; i <= most; ++i)
      values[source][i] = static_cast<T>(static_cast<float>((i * 37 + source * 11) % 101) * 0.37f - 15);
  const std::size_t kept = distx::detail::lane_bytes();
  const auto check = [&](const auto& op) {
    const auto any = distx::calls::AnyOp::make<T>(op);
    for (const std::size_t count : {std::size_t{1}, std::size_t{33}, std::size_t{1024}, most}) {
      const void* const sources[] = {&values[0][1], &values[1][1], &values[2][1]};  // aligned to no width
      std::vector<T> common(most + 1);
      const auto reduce = [&](std::size_t bytes, std::vector<T>& result) {
        distx::detail::lane_bytes() = bytes;
        void* const target = &result[1];
        any.reduce(&target, 1, sources, 3, count, 3);
      };
      reduce(distx::detail::common_lane_bytes, common);
      for (std::size_t bytes = 32; bytes <= distx::detail::widest_lane_bytes(); bytes *= 2) {
        CAPTURE(count);
        CAPTURE(bytes);
        std::vector<T> wide(most + 1);
        reduce(bytes, wide);
        CHECK(std::memcmp(common.data(), wide.data(), common.size() * sizeof(T)) == 0);
      }
    }
  };
  check(distx::sum);
  check(distx::product);
  check(distx::min);
  check(distx::max);
  if constexpr (distx::FractionalElement<T>) check(distx::average);
  distx::detail::lane_bytes() = kept;
}
