// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <array>
#include <numeric>

#include <distx/distx.hpp>

#include "comm/every_call.hpp"
#include "mpi/world.hpp"

using namespace distx;

namespace {

static_assert(Communicator<MpiCommunicator>);
static_assert(PendingCollective<Pending<>>);
static_assert(calls::HasAllReduce<MpiCommunicator, bfloat16, Average>);
static_assert(calls::HasPointToPoint<MpiCommunicator, double>);
struct Elsewhere {
  using stream = HostStream;
  using event = HostEvent;
  static constexpr std::string_view name = "elsewhere";
  static constexpr bool host_accessible = false;
};
static_assert(!calls::Executes<MpiCommunicator, calls::AllReduce<float, Sum, Elsewhere>>);

/// x -> a*x + b modulo 2^32: composition is associative but not commutative.
struct Affine {
  std::uint64_t operator()(std::uint64_t first, std::uint64_t then) const {
    const auto a = [](std::uint64_t map) { return static_cast<std::uint32_t>(map >> 32); };
    const auto b = [](std::uint64_t map) { return static_cast<std::uint32_t>(map); };
    return map(a(first) * a(then), b(first) * a(then) + b(then));
  }
  static std::uint64_t map(std::uint32_t a, std::uint32_t b) { return (std::uint64_t{a} << 32) | b; }
};

std::uint64_t affine(int rank, std::size_t i) {
  return Affine::map(static_cast<std::uint32_t>(2 * rank + 3), static_cast<std::uint32_t>(i) + 7u);
}

}  // namespace

TEST_CASE("operands of a non-commutative op are combined in rank order") {
  MpiCommunicator comm(world());
  // The largest exceeds what a call has in flight.
  for (const int count : {1, 7, 20000, 400'003 / comm.size()}) {
    const auto n = static_cast<std::size_t>(count);
    const auto all = n * static_cast<std::size_t>(comm.size());
    std::vector<std::uint64_t> mine(all), expected(all);
    for (std::size_t i = 0; i < all; ++i) {
      mine[i] = affine(comm.rank(), i);
      expected[i] = affine(0, i);
      for (int rank = 1; rank < comm.size(); ++rank) expected[i] = Affine{}(expected[i], affine(rank, i));
    }
    std::vector<std::uint64_t> out(all);
    all_reduce(comm, mine, out, Affine{});
    CHECK(out == expected);
    out = mine;
    start_all_reduce(comm, out, Affine{}).wait();
    CHECK(out == expected);
    for (int root = 0; root < comm.size(); ++root) {
      std::fill(out.begin(), out.end(), 0u);
      reduce(comm, mine, out, Affine{}, root);
      if (comm.rank() == root) CHECK(out == expected);
      out = mine;
      start_reduce(comm, out, out, Affine{}, root).wait();
      if (comm.rank() == root) CHECK(out == expected);
    }
    const auto own = n * static_cast<std::size_t>(comm.rank());
    const std::vector<std::uint64_t> own_expected(expected.begin() + static_cast<std::ptrdiff_t>(own),
                                                  expected.begin() + static_cast<std::ptrdiff_t>(own + n));
    std::vector<std::uint64_t> block(n);
    reduce_scatter(comm, mine, block, Affine{});
    CHECK(block == own_expected);
    start_reduce_scatter(comm, mine, block, Affine{}).wait();
    CHECK(block == own_expected);
  }
}

TEST_CASE("large blocks of different lengths are moved whole") {
  MpiCommunicator comm(world());
  // Rank 0's is empty; the others take different numbers of pieces, more than a call has in flight.
  const auto length = [](int rank) { return static_cast<std::size_t>(rank) * 120'001; };
  const auto element = [](int rank, std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<std::size_t>(rank) * 10'000'000 + i);
  };
  std::vector<std::uint32_t> mine(length(comm.rank())), all;
  std::vector<std::size_t> counts;
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = element(comm.rank(), i);
  for (int rank = 0; rank < comm.size(); ++rank) {
    counts.push_back(length(rank));
    for (std::size_t i = 0; i < length(rank); ++i) all.push_back(element(rank, i));
  }
  std::vector<std::uint32_t> out(all.size());
  all_gather(comm, mine, out, counts);
  CHECK(out == all);
  for (int root = 0; root < comm.size(); ++root) {
    std::fill(out.begin(), out.end(), 0U);
    gather(comm, mine, out, root, counts);
    CHECK((comm.rank() != root || out == all));
    std::vector<std::uint32_t> own(mine.size());
    scatter(comm, comm.rank() == root ? all : std::vector<std::uint32_t>(), own, root, counts);
    CHECK(own == mine);
    std::vector<std::uint32_t> copy = comm.rank() == root ? all : std::vector<std::uint32_t>(all.size());
    broadcast(comm, copy, root);
    CHECK(copy == all);
  }
  // Every rank sends `all`'s block r to rank r.
  const std::vector<std::size_t> equal(counts.size(), length(comm.rank()));
  std::vector<std::uint32_t> received(length(comm.rank()) * counts.size()), expected;
  for (int rank = 0; rank < comm.size(); ++rank) expected.insert(expected.end(), mine.begin(), mine.end());
  all_to_all(comm, all, received, counts, equal);
  CHECK(received == expected);
}

TEST_CASE("bfloat16 is added in float and rounded once") {
  MpiCommunicator comm(world());
  // Added one at a time in bfloat16, 256 + 1 would stay 256.
  std::vector<bfloat16> x(5, bfloat16(comm.rank() == 0 ? 256.0f : 1.0f));
  const auto total = bfloat16(256.0f + static_cast<float>(comm.size() - 1));
  auto y = x;
  all_reduce(comm, y, sum);
  for (const auto v : y) CHECK(v.bits() == total.bits());
  y = x;
  start_all_reduce(comm, y, sum).wait();
  for (const auto v : y) CHECK(v.bits() == total.bits());
  reduce(comm, x, y, sum, comm.size() - 1);
  for (const auto v : y) CHECK(v.bits() == total.bits());
  std::vector<bfloat16> blocks(5 * static_cast<std::size_t>(comm.size()), x[0]);
  reduce_scatter(comm, blocks, y, sum);
  for (const auto v : y) CHECK(v.bits() == total.bits());
}

TEST_CASE_TEMPLATE("8-bit floats are moved as they are, added in float and rounded once", T, distx::float8_e4m3,
                   distx::float8_e5m2) {
  MpiCommunicator comm(world());
  // Added one at a time, 16 + 1 would stay 16.
  const std::vector<T> x(100, T(comm.rank() == 0 ? 16.0f : 1.0f));
  const T total(16.0f + static_cast<float>(comm.size() - 1));
  const auto all_are = [](const std::vector<T>& values, T expected) {
    return std::ranges::all_of(values, [&](T value) { return value.bits() == expected.bits(); });
  };
  auto y = x;
  all_reduce(comm, y, sum);
  CHECK(all_are(y, total));
  y = x;
  start_all_reduce(comm, y, sum).wait();
  CHECK(all_are(y, total));
  reduce(comm, x, y, max, comm.size() - 1);
  if (comm.rank() == comm.size() - 1) CHECK(all_are(y, T(16.0f)));
  all_reduce(comm, x, y, [](float a, float) { return a; });
  CHECK(all_are(y, T(16.0f)));
  const std::vector<T> blocks(100 * static_cast<std::size_t>(comm.size()), x[0]);
  reduce_scatter(comm, blocks, y, average);
  CHECK(all_are(y, T((15.0f + static_cast<float>(comm.size())) / static_cast<float>(comm.size()))));
  std::vector<T> everyones(blocks.size());
  all_gather(comm, x, everyones);
  CHECK(everyones.front().bits() == T(16.0f).bits());
  CHECK(everyones.back().bits() == T(comm.size() == 1 ? 16.0f : 1.0f).bits());
  // Every bit pattern, including NaNs.
  std::vector<T> codes(256);
  for (std::size_t code = 0; code < 256; ++code)
    codes[code] = T::from_bits(static_cast<std::uint8_t>(comm.rank() == 0 ? code : 0));
  broadcast(comm, codes, 0);
  for (std::size_t code = 0; code < 256; ++code) CHECK(codes[code].bits() == code);
}

TEST_CASE("blocking and asynchronous reductions have the same bits") {
  MpiCommunicator comm(world());
  std::vector<float> values(700'001);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = 1.0F / static_cast<float>(i + 1 + 7 * static_cast<std::size_t>(comm.rank()));
  auto blocking = values, asynchronous = values;
  all_reduce(comm, blocking, average);
  start_all_reduce(comm, asynchronous, average).wait();
  CHECK(blocking == asynchronous);
}

TEST_CASE("asynchronous calls complete in wait, in any order, and in their destructor") {
  MpiCommunicator comm(world());
  const int size = comm.size();
  std::array<std::vector<int>, 4> x;
  for (std::size_t i = 0; i < x.size(); ++i) x[i].assign(1000, static_cast<int>(i) + comm.rank());
  const auto total = [&](std::size_t i) { return size * static_cast<int>(i) + size * (size - 1) / 2; };
  {
    auto first = start_all_reduce(comm, x[0], sum);
    auto second = start_all_reduce(comm, x[1], sum);
    int number = comm.rank();
    all_reduce(comm, number, max);  // blocking and asynchronous calls are ordered separately
    CHECK(number == size - 1);
    auto third = start_all_reduce(comm, x[2], sum);
    second.wait();
    CHECK(x[1] == std::vector<int>(1000, total(1)));
    while (!first.test()) {
    }
    first.wait();
    first.wait();  // already complete
    CHECK(x[0] == std::vector<int>(1000, total(0)));
    auto moved = std::move(third);
    CHECK(third.test());  // NOLINT: empty, so complete
  }
  CHECK(x[2] == std::vector<int>(1000, total(2)));
  Pending<> outlives;
  {
    MpiCommunicator short_lived(world());
    outlives = start_all_reduce(short_lived, x[3], sum);
  }
  outlives.wait();
  CHECK(x[3] == std::vector<int>(1000, total(3)));
}

TEST_CASE("split accepts any colors and orders by key") {
  MpiCommunicator comm(world());
  auto odd = comm.split(comm.rank() % 2 == 0 ? -7 : INT_MAX, -comm.rank());
  CHECK(odd.size() == (comm.size() + (comm.rank() % 2 == 0 ? 1 : 0)) / 2);
  std::vector<int> members(static_cast<std::size_t>(odd.size()));
  all_gather(odd, comm.rank(), members);
  CHECK(std::is_sorted(members.rbegin(), members.rend()));
  CHECK(members[static_cast<std::size_t>(odd.rank())] == comm.rank());

  // Destroyed communicators release their MPI contexts: this makes more of them than MPI can have at a time.
  for (int i = 0; i < 300; ++i) {
    auto part = comm.split(i % 2, 0);
    CHECK(part.size() == comm.size());
  }
}

TEST_CASE("handles share one state") {
  MpiCommunicator comm(world());
  auto other = comm.share();
  CHECK(other == comm);
  CHECK(other.native_handle() == comm.native_handle());
  MpiCommunicator another(world());
  CHECK_FALSE(another == comm);
  auto memory = comm.allocate<float>(10);
  CHECK(memory.size() == 10);
  CHECK(comm.scratch(100).size() == 100);
}

TEST_CASE("only the first call of each kind allocates, through AnyCommunicator too") {
  for (const Timeout& deadline : {Timeout(no_timeout), default_deadline}) {
    MpiCommunicator comm(world(), {.deadline = deadline});
    AnyCommunicator<> any(comm.share());
    CHECK(test::allocations_of_repeated_calls(comm) == 0);
    CHECK(test::allocations_of_repeated_calls(any) == 0);
  }
}
