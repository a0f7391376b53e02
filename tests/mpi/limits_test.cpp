// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Calls that exceed the limit of one MPI call, with that limit set to 1000 elements.
#include <doctest/doctest.h>

#include <climits>
#include <numeric>

#include <distx/distx.hpp>

#include "conformance/reductions.hpp"
#include "mpi/world.hpp"

using namespace distx;

namespace {

constexpr std::size_t limit = 1000;
constexpr std::size_t n = 2500;

struct Pair {
  std::uint32_t first;
  std::uint32_t second;
  friend bool operator==(const Pair&, const Pair&) = default;
};

/// Returns element i of rank r's block for rank `to`; all of them differ.
template <class T>
T value(int r, std::size_t i, int to = 0) {
  const auto number = static_cast<std::uint32_t>(r * 1000000 + to * 100000) + static_cast<std::uint32_t>(i);
  if constexpr (std::same_as<T, Pair>)
    return {number, ~number};
  else
    return static_cast<T>(number);
}
template <class T>
std::vector<T> values(int r, std::size_t count, int to = 0) {
  std::vector<T> list;
  for (std::size_t i = 0; i < count; ++i) list.push_back(value<T>(r, i, to));
  return list;
}
template <class T>
void append(std::vector<T>& list, const std::vector<T>& more) {
  list.insert(list.end(), more.begin(), more.end());
}

std::size_t uneven(int rank) { return rank % 3 == 1 ? 0 : n + static_cast<std::size_t>(rank); }

struct Ranks {
  MpiCommunicator comm{world(), {.collectives = MpiCollectives::vendor, .max_count = limit}};
  int rank = comm.rank();
  int size = comm.size();
  std::vector<std::size_t> counts() const {
    std::vector<std::size_t> list;
    for (int r = 0; r < size; ++r) list.push_back(uneven(r));
    return list;
  }
};

}  // namespace

TEST_CASE("limits: reductions") {
  Ranks w;
  const auto total = [&](std::size_t i) {
    return w.size * (w.size - 1) / 2 * 1000 + w.size * static_cast<int>(i % 97);
  };
  const auto mine = [&](std::size_t count) {
    std::vector<int> list;
    for (std::size_t i = 0; i < count; ++i) list.push_back(w.rank * 1000 + static_cast<int>(i % 97));
    return list;
  };
  const auto expected = [&](std::size_t from, std::size_t count) {
    std::vector<int> list;
    for (std::size_t i = from; i < from + count; ++i) list.push_back(total(i));
    return list;
  };
  std::vector<int> out(n);
  all_reduce(w.comm, mine(n), out, sum);
  CHECK(out == expected(0, n));
  auto in_place = mine(n);
  start_all_reduce(w.comm, in_place, sum).wait();
  CHECK(in_place == expected(0, n));
  for (int root = 0; root < w.size; ++root) {
    std::vector<int> at_root(w.rank == root ? n : 0);
    reduce(w.comm, mine(n), at_root, sum, root);
    if (w.rank == root) CHECK(at_root == expected(0, n));
  }
  const auto own = static_cast<std::size_t>(w.rank) * n;
  auto everything = mine(n * static_cast<std::size_t>(w.size));
  std::vector<int> block(n);
  reduce_scatter(w.comm, everything, block, sum);
  CHECK(block == expected(own, n));
  start_reduce_scatter(w.comm, everything, std::span(everything).subspan(own, n), sum).wait();
  CHECK(std::vector<int>(everything.begin() + static_cast<std::ptrdiff_t>(own),
                         everything.begin() + static_cast<std::ptrdiff_t>(own + n)) == expected(own, n));
  const auto counts = w.counts();
  const auto all = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  std::vector<int> part(uneven(w.rank));
  reduce_scatter(w.comm, mine(all), part, sum, counts);
  CHECK(part == expected(calls::block_offset(counts, 0, w.rank), uneven(w.rank)));
}

TEST_CASE("limits: bfloat16 beyond the limit") {
  Ranks w;
  std::vector<bfloat16> x(n, bfloat16(static_cast<float>(w.rank)));
  all_reduce(w.comm, x, average);
  for (const auto v : x) REQUIRE(float(v) == float(bfloat16(static_cast<float>(w.size - 1) / 2)));
}

TEST_CASE_TEMPLATE("limits: movement", T, std::uint8_t, double, Pair) {
  Ranks w;
  const auto counts = w.counts();
  for (int root = 0; root < w.size; ++root) {
    auto buffer = values<T>(w.rank, n);
    broadcast(w.comm, buffer, root);
    CHECK(buffer == values<T>(root, n));
  }
  std::vector<T> equal, different, everything, parts;
  for (int r = 0; r < w.size; ++r) {
    append(equal, values<T>(r, n));
    append(different, values<T>(r, uneven(r)));
    append(everything, values<T>(0, n, r));
    append(parts, values<T>(0, uneven(r), r));
  }
  std::vector<T> received(equal.size());
  all_gather(w.comm, values<T>(w.rank, n), received);
  CHECK(received == equal);
  received.assign(different.size(), T{});
  all_gather(w.comm, values<T>(w.rank, uneven(w.rank)), received, counts);
  CHECK(received == different);
  for (int root = 0; root < w.size; ++root) {
    const bool here = w.rank == root;
    received.assign(here ? equal.size() : 0, T{});
    gather(w.comm, values<T>(w.rank, n), received, root);
    if (here) CHECK(received == equal);
    received.assign(here ? different.size() : 0, T{});
    gather(w.comm, values<T>(w.rank, uneven(w.rank)), received, root, here ? calls::Counts(counts) : calls::Counts());
    if (here) CHECK(received == different);
    received.assign(n, T{});
    scatter(w.comm, here ? everything : std::vector<T>(), received, root);
    CHECK(received == values<T>(0, n, w.rank));
    received.assign(uneven(w.rank), T{});
    scatter(w.comm, here ? parts : std::vector<T>(), received, root, here ? calls::Counts(counts) : calls::Counts());
    CHECK(received == values<T>(0, uneven(w.rank), w.rank));
  }
}

TEST_CASE("limits: all to all") {
  Ranks w;
  std::vector<int> send, expected;
  for (int r = 0; r < w.size; ++r) {
    append(send, values<int>(w.rank, n, r));
    append(expected, values<int>(r, n, w.rank));
  }
  std::vector<int> received(send.size());
  all_to_all(w.comm, send, received);
  CHECK(received == expected);
  auto in_place = send;
  all_to_all(w.comm, in_place, in_place);
  CHECK(in_place == expected);
  start_all_to_all(w.comm, send, send).wait();
  CHECK(send == expected);

  // Rank a sends rank b 1000 * (a + b) + 1 elements.
  const auto count = [](int a, int b) { return static_cast<std::size_t>(a + b) * 1000 + 1; };
  std::vector<std::size_t> out, in;
  std::vector<int> mine, theirs;
  for (int r = 0; r < w.size; ++r) {
    out.push_back(count(w.rank, r));
    in.push_back(count(r, w.rank));
    append(mine, values<int>(w.rank, out.back(), r));
    append(theirs, values<int>(r, in.back(), w.rank));
  }
  received.assign(theirs.size(), 0);
  all_to_all(w.comm, mine, received, out, in);
  CHECK(received == theirs);
}

TEST_CASE("limits: a message is one message, however large") {
  Ranks w;
  const int next = (w.rank + 1) % w.size;
  const int previous = (w.rank + w.size - 1) % w.size;
  std::vector<double> received(n);
  send_receive(w.comm, values<double>(w.rank, n), next, received, previous);
  CHECK(received == values<double>(previous, n));
  const auto to = values<double>(w.rank, n);
  auto receiving = start_receive(w.comm, received, previous, 3);
  auto sending = start_send(w.comm, to, next, 3);
  sending.wait();
  receiving.wait();
  CHECK(received == values<double>(previous, n));
}

TEST_CASE("limits: a block that has more whole pieces than the root expects is a mismatch, unchecked as well" *
          needs_ranks(2)) {
  MpiCommunicator comm{world(), {.check = Check::off, .collectives = MpiCollectives::vendor, .max_count = limit}};
  static std::vector<int> send(2 * limit), received;  // the library may access them after an error
  const bool root = comm.rank() == 0;
  received.resize(root ? static_cast<std::size_t>(comm.size()) * limit : 0);
  std::string found;
  try {
    gather(comm, std::span(send).first(comm.rank() == 1 ? 2 * limit : limit), received, 0);
  } catch (const MismatchError& error) {
    found = error.what();
  } catch (const RevokedError&) {  // by the root
  }
  if (root) CHECK(found.find("expects 1000 elements of type int32, rank 1 sends 2000 elements") != std::string::npos);
}

TEST_CASE("limits: an invalid max_count is rejected") {
  CHECK_THROWS_AS(MpiCommunicator(world(), {.max_count = 0}), InvalidArgument);
  CHECK_THROWS_AS(MpiCommunicator(world(), {.max_count = std::size_t{INT_MAX} + 1}), InvalidArgument);
}

TEST_CASE("limits: a user's tags take all of MPI's") {
  int *most = nullptr, found = 0;
  REQUIRE(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&most), &found) == MPI_SUCCESS);
  MpiCommunicator comm(world());
  const int tag = static_cast<int>((std::int64_t{*most} + 1) / 1024) - 1;  // in Open MPI and MPICH
  int sent = 7, received = 0;
  auto sending = start_send(comm, sent, comm.rank(), tag);
  receive(comm, received, comm.rank(), tag);
  sending.wait();
  CHECK(received == 7);
  world().barrier();  // the error revokes the communicator
  CHECK_THROWS_AS(send(comm, sent, comm.rank(), tag + 1), InvalidArgument);
}

TEST_CASE("MPI's own collectives keep the NaN of any rank, in one piece and in several") {
  Ranks w;
  conformance::Report report;
  conformance::Findings findings(report, w.rank, w.size);
  conformance::Extremes{}(w.comm, findings);
  CHECK_MESSAGE(report.empty(), report.text());
}
