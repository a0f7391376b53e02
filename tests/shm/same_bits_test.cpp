// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// For buffers in the communicator's memory, in private memory, or one in each, results have the bits of a reduction in
// rank order, and moved data is correct.
#include <doctest/doctest.h>

#include "conformance/elements.hpp"
#include "conformance/findings.hpp"
#include "distx/distx.hpp"
#include "distx/shm.hpp"
#include "shm/pages.hpp"

namespace {

using distx::CommunicatorMemory;
using distx::Span;

enum class Where { user, communicator, adopted, mixed, mixed_sends, mixed_receives };
constexpr std::pair<Where, const char*> all_places[] = {
    {Where::user, "the user's memory"},          {Where::communicator, "communicator memory"},
    {Where::adopted, "adopted memory"},          {Where::mixed, "memory of all kinds"},
    {Where::mixed_sends, "sends of both kinds"}, {Where::mixed_receives, "receives of both kinds"}};

/// Returns n elements for each rank, some of them in communicator memory or adopted.
template <class T>
struct Memory {
  Memory(distx::ShmCommunicator& comm, std::size_t n, Where where, bool sends)
      : shared(comm.allocate<T>(n + 3)), own(n + 3), pages(n + 3) {
    if (where == Where::adopted || where == Where::mixed) adopted = comm.adopt(pages.span());
    const bool odd = comm.rank() % 2 == 1;
    const bool use_shared = where == Where::communicator || (where == Where::mixed && odd == sends) ||
                            (where == (sends ? Where::mixed_sends : Where::mixed_receives) && odd);
    const bool use_adopted = where == Where::adopted || (where == Where::mixed && comm.rank() % 4 >= 2);
    // Not always at the beginning of the allocation.
    span = use_adopted  ? adopted.span().subspan(n % 4, n)
           : use_shared ? shared.span().subspan(n % 4, n)
                        : Span<T>(own).subspan(n % 3, n);
  }
  CommunicatorMemory<T> shared;
  std::vector<T> own;
  test::Pages<T> pages;
  CommunicatorMemory<T> adopted;
  Span<T> span;
};

template <class T>
std::vector<T> values(std::size_t n, int rank) {
  std::vector<T> all(n);
  std::uint32_t state = static_cast<std::uint32_t>(rank) * 2654435761u + static_cast<std::uint32_t>(n);
  for (T& value : all) {
    state = state * 1664525u + 1013904223u;
    if constexpr (std::integral<T>)
      value = static_cast<T>(state >> 24);
    else
      value = static_cast<T>(static_cast<float>(static_cast<int>(state >> 8) % 20001 - 10000) * 0.0137f);
  }
  return all;
}

/// Returns the reduction in rank order, one operand at a time.
template <class T, class Op>
std::vector<T> reduced(std::size_t n, int ranks, const Op& op) {
  std::vector<distx::accumulator_t<T>> sums;
  for (const T value : values<T>(n, 0)) sums.push_back(static_cast<distx::accumulator_t<T>>(value));
  for (int rank = 1; rank < ranks; ++rank) {
    const auto more = values<T>(n, rank);
    for (std::size_t i = 0; i < n; ++i) sums[i] = op(sums[i], static_cast<distx::accumulator_t<T>>(more[i]));
  }
  std::vector<T> result;
  for (const auto total : sums) result.push_back(static_cast<T>(total));
  return result;
}

template <class T>
std::vector<T> part(const std::vector<T>& all, std::size_t begin, std::size_t count) {
  return {all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(begin + count)};
}

template <class T>
void check_size(distx::ShmCommunicator& comm, conformance::Findings& findings, std::size_t n, Where where,
                const std::string& what) {
  const int me = comm.rank(), ranks = comm.size();
  const auto count = static_cast<std::size_t>(ranks), mine = static_cast<std::size_t>(me);
  const int root = ranks / 2;
  const auto same = [&](Span<T> got, const std::vector<T>& expected, const std::string& name) {
    findings.same(std::vector<T>(got.begin(), got.end()), expected, name + ", " + what);
  };
  const auto sums = reduced<T>(n, ranks, distx::sum);
  const auto put = [](Span<T> to, const std::vector<T>& from) { std::copy(from.begin(), from.end(), to.begin()); };

  Memory<T> send(comm, n, where, true), receive(comm, n, where, false);
  put(send.span, values<T>(n, me));
  distx::all_reduce(comm, send.span, receive.span, distx::sum);
  same(receive.span, sums, "all_reduce");
  distx::fill({}, receive.span, T{});
  distx::reduce(comm, send.span, receive.span, distx::sum, root);
  if (me == root) same(receive.span, sums, "reduce");
  auto pending = distx::start_all_reduce(comm, send.span, distx::sum);
  pending.wait();
  same(send.span, sums, "started all_reduce in place");
  put(send.span, values<T>(n, me));
  distx::broadcast(comm, send.span, root);
  same(send.span, values<T>(n, root), "broadcast");

  // Equal blocks of n, and blocks that differ by rank.
  std::vector<std::size_t> counts;
  std::vector<T> gathered;
  for (std::size_t r = 0; r < count; ++r) counts.push_back(r % 3 == 1 ? 0 : n / (r + 1));
  const auto begin = distx::calls::block_offset(counts, 0, me), total = distx::calls::total_count(counts, 0, ranks);
  const auto block = counts[mine];
  for (int r = 0; r < ranks; ++r)
    conformance::append(gathered, part(values<T>(n, r), 0, counts[static_cast<std::size_t>(r)]));
  Memory<T> whole(comm, n * count, where, true), other(comm, n * count, where, false);
  put(send.span, values<T>(n, me));
  distx::all_gather(comm, send.span.first(block), whole.span.first(total), counts);
  same(whole.span.first(total), gathered, "all_gather in uneven blocks");
  distx::gather(comm, send.span.first(block), other.span.first(total), root, counts);
  if (me == root) same(other.span.first(total), gathered, "gather of uneven blocks");
  put(other.span.first(total), gathered);
  distx::scatter(comm, other.span.first(total), receive.span.first(block), root, counts);
  same(receive.span.first(block), part(values<T>(n, me), 0, block), "scatter of uneven blocks");
  put(whole.span, values<T>(n * count, me));
  distx::reduce_scatter(comm, whole.span.first(total), receive.span.first(block), distx::sum, counts);
  same(receive.span.first(block), part(reduced<T>(n * count, ranks, distx::sum), begin, block),
       "reduce_scatter in uneven blocks");
  distx::reduce_scatter(comm, whole.span, receive.span, distx::sum);
  same(receive.span, part(reduced<T>(n * count, ranks, distx::sum), n * mine, n), "reduce_scatter");

  std::vector<T> exchanged;
  for (int r = 0; r < ranks; ++r) conformance::append(exchanged, part(values<T>(n * count, r), n * mine, n));
  distx::all_to_all(comm, whole.span, other.span);
  same(other.span, exchanged, "all_to_all");
  distx::all_to_all(comm, whole.span, whole.span);
  same(whole.span, exchanged, "all_to_all in place");
}

template <class T>
void check_type(const std::vector<std::size_t>& sizes) {
  conformance::Report report;
  for (const int ranks : {1, 2, 3, 5}) {
    distx::spawn(distx::threads(ranks, std::chrono::minutes(2)), [&](distx::ThreadConnector& connector) {
      distx::ShmCommunicator comm(connector, std::chrono::minutes(2));
      conformance::Findings findings(report, comm.rank(), comm.size());
      for (const std::size_t n : sizes)
        for (const auto& [where, name] : all_places)
          check_size<T>(comm, findings, n, where, std::to_string(n) + " elements in " + name);
    });
  }
  CHECK_MESSAGE(report.empty(), report.text());
}

// Sizes around a slot (2 KiB), a cache line, a round's staging buffer (256 KiB), and several of those.
TEST_CASE("float results do not depend on the kind of memory") {
  check_type<float>({0, 1, 17, 511, 513, 4099, 65537, 200003});
}
TEST_CASE("bfloat16 results do not depend on the kind of memory") { check_type<distx::bfloat16>({3, 1025, 140001}); }
TEST_CASE("double results do not depend on the kind of memory") { check_type<double>({257, 33001}); }
TEST_CASE("moved bytes do not depend on the kind of memory") { check_type<std::uint8_t>({63, 2049, 262145}); }

TEST_CASE("the same inputs produce the same bits a thousand times") {
  // From one element to 4 MiB, around a slot, a line and a round's staging buffer; larger sizes are repeated less
  // often.
  conformance::Report report;
  distx::spawn(3, [&](distx::ThreadConnector& connector) {
    distx::ShmCommunicator comm(connector, std::chrono::minutes(2));
    conformance::Findings findings(report, comm.rank(), comm.size());
    for (const auto& [n, rounds] : {std::pair<std::size_t, int>{1, 1000},
                                    {5, 1000},
                                    {513, 1000},
                                    {3001, 1000},
                                    {16384, 1000},
                                    {65537, 1000},
                                    {262144, 300},
                                    {1048576, 100}}) {
      const auto expected = reduced<float>(n, 3, distx::sum);
      const auto mine = values<float>(n, comm.rank());
      auto memory = comm.allocate<float>(n);
      std::vector<float> plain(n);
      const std::string what = std::to_string(n) + " elements, round ";
      for (int round = 0; round < rounds; ++round) {
        plain = mine;
        std::copy(mine.begin(), mine.end(), memory.begin());
        distx::all_reduce(comm, memory, distx::sum);
        distx::all_reduce(comm, plain, distx::sum);
        findings.expect(std::memcmp(plain.data(), expected.data(), n * sizeof(float)) == 0,
                        "the user's memory, " + what + std::to_string(round));
        findings.expect(std::memcmp(memory.data(), expected.data(), n * sizeof(float)) == 0,
                        "communicator memory, " + what + std::to_string(round));
      }
    }
  });
  CHECK_MESSAGE(report.empty(), report.text());
}

}  // namespace
