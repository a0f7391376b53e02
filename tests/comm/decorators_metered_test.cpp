// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tests the formulas for the bytes of a call, and the ledger that adds them up.
#include <doctest/doctest.h>

#include <mutex>
#include <numeric>

#include "distx/comm/decorators/metered.hpp"
#include "distx/comm/decorators/sum_over_ranks.hpp"
#include "distx/distx.hpp"

namespace {

using distx::calls::WireBytes;
using distx::observe::Traffic;
constexpr int rank_counts[] = {1, 2, 3, 4, 7};
constexpr std::size_t sizes[] = {0, 1, 5, 7, 84, 100003};

/// Returns a span without data: the formulas depend on its length only.
template <class T>
distx::Span<T> of(std::size_t size) {
  return {nullptr, size};
}
using Value = double;
using In = distx::Span<const Value>;

std::size_t size(int ranks) { return static_cast<std::size_t>(ranks); }

/// Adds up the bytes of the call that each rank makes; the erased call must have the same bytes.
template <class MakeCall>
WireBytes over_ranks(int ranks, MakeCall&& make_call) {
  WireBytes all;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto call = make_call(rank);
    const WireBytes mine = wire_bytes(call, rank, ranks);
    CHECK(wire_bytes(distx::calls::erase(call), rank, ranks) == mine);
    CHECK(payload_bytes(distx::calls::erase(call), rank) == payload_bytes(call, rank));
    all.sent += mine.sent;
    all.received += mine.received;
  }
  return all;
}
WireBytes both(std::size_t elements) { return {elements * sizeof(Value), elements * sizeof(Value)}; }

TEST_CASE("all ranks together send and receive the same number of bytes, as the formulas predict") {
  for (const int ranks : rank_counts)
    for (const std::size_t n : sizes) {
      CAPTURE(ranks);
      CAPTURE(n);
      const std::size_t others = size(ranks) - 1;
      using AllReduce = distx::calls::AllReduce<Value, distx::Sum>;
      using ReduceScatter = distx::calls::ReduceScatter<Value, distx::Sum>;
      using Reduce = distx::calls::Reduce<Value, distx::Sum>;
      const auto all_reduce = [&](int) { return AllReduce{of<const Value>(n), of<Value>(n)}; };
      CHECK(over_ranks(ranks, all_reduce) == both(2 * n * others));
      CHECK(over_ranks(ranks, [&](int) { return ReduceScatter{of<const Value>(n * size(ranks)), of<Value>(n)}; }) ==
            both(n * size(ranks) * others));
      CHECK(over_ranks(ranks, [&](int) {
              return distx::calls::AllGather<Value>{of<const Value>(n), of<Value>(n * size(ranks))};
            }) == both(n * size(ranks) * others));
      CHECK(over_ranks(ranks, [&](int) {
              return distx::calls::AllToAll<Value>{of<const Value>(n * size(ranks)), of<Value>(n * size(ranks))};
            }) == both(n * size(ranks) * others));
      for (int root = 0; root < ranks; ++root) {
        const auto at_root = [&](int rank) { return rank == root ? n * size(ranks) : 0; };
        CHECK(over_ranks(ranks, [&](int) { return distx::calls::Broadcast<Value>{of<Value>(n), root}; }) ==
              both(n * others));
        CHECK(over_ranks(ranks, [&](int) { return Reduce{of<const Value>(n), of<Value>(n), {}, root}; }) ==
              both(n * others));
        CHECK(over_ranks(ranks, [&](int rank) {
                return distx::calls::Gather<Value>{of<const Value>(n), of<Value>(at_root(rank)), root};
              }) == both(n * others));
        CHECK(over_ranks(ranks, [&](int rank) {
                return distx::calls::Scatter<Value>{of<const Value>(at_root(rank)), of<Value>(n), root};
              }) == both(n * others));
      }
      const auto ring = [&](int rank) {
        return distx::calls::SendReceive<Value>{of<const Value>(n), (rank + 1) % ranks, of<Value>(n),
                                                (rank + ranks - 1) % ranks};
      };
      CHECK(over_ranks(ranks, ring) == both(ranks > 1 ? n * size(ranks) : 0));
      CHECK(over_ranks(ranks, [](int) { return distx::calls::Barrier<>{}; }) == WireBytes{});
      // If n is divisible by the number of ranks, all ranks transfer the same number of bytes.
      if (n % size(ranks) == 0)
        for (int rank = 0; rank < ranks; ++rank)
          CHECK(wire_bytes(all_reduce(rank), rank, ranks) == both(2 * n * others / size(ranks)));
    }
}

TEST_CASE("uneven counts send and receive the same number of bytes") {
  for (const int ranks : rank_counts) {
    CAPTURE(ranks);
    std::vector<std::size_t> counts;
    for (std::size_t rank = 0; rank < size(ranks); ++rank) counts.push_back(rank * rank % 5 * 11);
    const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    const auto mine = [&](int rank) { return counts[static_cast<std::size_t>(rank)]; };
    CHECK(over_ranks(ranks, [&](int rank) {
            return distx::calls::AllGather<Value>{of<const Value>(mine(rank)), of<Value>(total), counts};
          }) == both(total * (size(ranks) - 1)));
    CHECK(over_ranks(ranks, [&](int rank) {
            return distx::calls::ReduceScatter<Value, distx::Sum>{
                of<const Value>(total), of<Value>(mine(rank)), {}, counts};
          }) == both(total * (size(ranks) - 1)));
    for (int root = 0; root < ranks; ++root) {
      const auto all = [&](int rank) { return rank == root ? total : 0; };
      CHECK(over_ranks(ranks, [&](int rank) {
              return distx::calls::Gather<Value>{of<const Value>(mine(rank)), of<Value>(all(rank)), root, counts};
            }) == both(total - mine(root)));
      CHECK(over_ranks(ranks, [&](int rank) {
              return distx::calls::Scatter<Value>{of<const Value>(all(rank)), of<Value>(mine(rank)), root, counts};
            }) == both(total - mine(root)));
    }
    const auto pair = [](int from, int to) { return static_cast<std::size_t>((from * 5 + to * 3) % 4) * 17; };
    std::vector<std::vector<std::size_t>> out(size(ranks)), in(size(ranks));
    std::size_t moved = 0;
    for (int a = 0; a < ranks; ++a)
      for (int b = 0; b < ranks; ++b) {
        out[static_cast<std::size_t>(a)].push_back(pair(a, b));
        in[static_cast<std::size_t>(a)].push_back(pair(b, a));
        if (a != b) moved += pair(a, b);
      }
    CHECK(over_ranks(ranks, [&](int rank) {
            const auto& send = out[static_cast<std::size_t>(rank)];
            const auto& receive = in[static_cast<std::size_t>(rank)];
            return distx::calls::AllToAll<Value>{
                of<const Value>(std::accumulate(send.begin(), send.end(), std::size_t{0})),
                of<Value>(std::accumulate(receive.begin(), receive.end(), std::size_t{0})), send, receive};
          }) == both(moved));
  }
}

TEST_CASE("a broadcast follows a chain from the root, and a reduction a chain to it") {
  const auto broadcast = [](int rank) { return wire_bytes(distx::calls::Broadcast<Value>{of<Value>(10), 1}, rank, 3); };
  CHECK(broadcast(1) == WireBytes{80, 0});
  CHECK(broadcast(2) == WireBytes{80, 80});
  CHECK(broadcast(0) == WireBytes{0, 80});
  const auto reduce = [](int rank) {
    return wire_bytes(distx::calls::Reduce<Value, distx::Sum>{of<const Value>(10), of<Value>(10), {}, 1}, rank, 3);
  };
  CHECK(reduce(0) == WireBytes{80, 0});
  CHECK(reduce(2) == WireBytes{80, 80});
  CHECK(reduce(1) == WireBytes{0, 80});
}

TEST_CASE("self-sends transfer no bytes") {
  CHECK(wire_bytes(distx::calls::Send<Value>{of<const Value>(3), 1}, 0, 2) == WireBytes{24, 0});
  CHECK(wire_bytes(distx::calls::Send<Value>{of<const Value>(3), 0}, 0, 2) == WireBytes{});
  CHECK(wire_bytes(distx::calls::Receive<Value>{of<Value>(3), 1}, 0, 2) == WireBytes{0, 24});
  CHECK(wire_bytes(distx::calls::Receive<Value>{of<Value>(3), 0}, 0, 2) == WireBytes{});
  const distx::calls::SendReceive<Value> half{of<const Value>(3), 0, of<Value>(5), 1};
  CHECK(wire_bytes(half, 0, 2) == WireBytes{0, 40});
  CHECK(payload_bytes(half, 0) == 64);
}

TEST_CASE("the payload is the longer side of the spans that a rank's call uses") {
  CHECK(payload_bytes(distx::calls::AllGather<Value>{of<const Value>(2), of<Value>(6)}, 0) == 48);
  CHECK(payload_bytes(distx::calls::ReduceScatter<Value, distx::Sum>{of<const Value>(6), of<Value>(2)}, 0) == 48);
  CHECK(payload_bytes(distx::calls::Gather<Value>{of<const Value>(2), of<Value>(6), 1}, 1) == 48);
  CHECK(payload_bytes(distx::calls::Gather<Value>{of<const Value>(2), of<Value>(6), 1}, 0) == 16);
  CHECK(payload_bytes(distx::calls::Scatter<Value>{of<const Value>(6), of<Value>(2), 1}, 1) == 48);
  CHECK(payload_bytes(distx::calls::Scatter<Value>{of<const Value>(6), of<Value>(2), 1}, 0) == 16);
  CHECK(payload_bytes(distx::calls::Reduce<Value, distx::Sum>{of<const Value>(2), of<Value>(6), {}, 1}, 0) == 16);
  CHECK(payload_bytes(distx::calls::Barrier<>{}, 0) == 0);
}

TEST_CASE("the ledger counts every blocking and asynchronous call, for every number of ranks") {
  for (const int ranks : rank_counts) {
    CAPTURE(ranks);
    std::mutex mutex;
    std::vector<distx::observe::Ledger> ledgers, sums;
    distx::spawn(ranks, [&](distx::ThreadConnector& connector) {
      distx::Metered comm{distx::ThreadCommunicator(connector)};
      const std::size_t n = 10;  // not divisible by 3, 4 and 7
      std::vector<float> small(n), small_too(n), large(n * size(ranks)), large_too(n * size(ranks));
      const int right = (comm.rank() + 1) % ranks, left = (comm.rank() + ranks - 1) % ranks;
      distx::all_reduce(comm, small, distx::sum);
      distx::start_all_reduce(comm, small, distx::sum).wait();
      distx::reduce_scatter(comm, large, small, distx::sum);
      distx::reduce(comm, small, distx::sum, 0);
      distx::broadcast(comm, small, 0);
      distx::all_gather(comm, small, large);
      distx::all_to_all(comm, large, large_too);
      distx::gather(comm, small, large, 0);
      distx::scatter(comm, large, small, 0);
      distx::send_receive(comm, small, right, small_too, left);
      distx::barrier(comm);
      auto received = distx::start_receive(comm, small_too, left, 1);
      distx::start_send(comm, small, right, 1).wait();
      received.wait();
      const auto mine = comm.ledger();
      const auto all = distx::sum_over_ranks(mine, connector);
      const auto also_all = distx::sum_over_ranks(mine, comm);
      const std::lock_guard lock(mutex);
      ledgers.push_back(mine);
      sums.push_back(all);
      sums.push_back(also_all);
    });
    const std::uint64_t N = size(ranks), bytes = 40;
    distx::observe::Ledger expected;
    expected.add("all_reduce", {2 * N, 2 * N * bytes, 4 * bytes * (N - 1), 4 * bytes * (N - 1)});
    expected.add("reduce_scatter", {N, N * N * bytes, N * bytes * (N - 1), N * bytes * (N - 1)});
    expected.add("reduce", {N, N * bytes, bytes * (N - 1), bytes * (N - 1)});
    expected.add("broadcast", {N, N * bytes, bytes * (N - 1), bytes * (N - 1)});
    expected.add("all_gather", {N, N * N * bytes, N * bytes * (N - 1), N * bytes * (N - 1)});
    expected.add("all_to_all", {N, N * N * bytes, N * bytes * (N - 1), N * bytes * (N - 1)});
    expected.add("gather", {N, (2 * N - 1) * bytes, bytes * (N - 1), bytes * (N - 1)});
    expected.add("scatter", {N, (2 * N - 1) * bytes, bytes * (N - 1), bytes * (N - 1)});
    const std::uint64_t messages = N > 1 ? N * bytes : 0;
    expected.add("send_receive", {N, 2 * N * bytes, messages, messages});
    expected.add("send", {N, N * bytes, messages, 0});
    expected.add("receive", {N, N * bytes, 0, messages});
    expected.add("barrier", {N, 0, 0, 0});
    distx::observe::Ledger added;
    for (const auto& ledger : ledgers) added += ledger;
    for (const auto& [operation, traffic] : expected.entries()) {
      CAPTURE(operation);
      CHECK(added[operation].calls == traffic.calls);
      CHECK(added[operation].payload_bytes == traffic.payload_bytes);
      CHECK(added[operation].sent_bytes == traffic.sent_bytes);
      CHECK(added[operation].received_bytes == traffic.received_bytes);
    }
    CHECK(added == expected);
    CHECK(sums.size() == 2 * size(ranks));
    for (const auto& all : sums) CHECK(all == expected);
    CHECK(added.total().sent_bytes == added.total().received_bytes);
  }
}

TEST_CASE("handles, groups and erased calls count into the same ledger; failed calls do not") {
  distx::observe::Ledger ledger;
  std::string failure;
  distx::spawn(2, [&](distx::ThreadConnector& connector) {
    distx::Metered comm{distx::ThreadCommunicator(connector)};
    auto handle = comm.share();
    auto group = comm.split(0, 0);
    distx::AnyCommunicator<> any(comm.share());
    std::vector<double> values(4);
    distx::all_reduce(comm, values, distx::sum);
    distx::all_reduce(handle, values, distx::sum);
    distx::all_reduce(group, values, distx::sum);
    distx::all_reduce(any, values, distx::sum);
    const auto before = comm.ledger();
    connector.barrier();
    try {
      distx::all_reduce(group, values, std::vector<double>(3), distx::sum);
    } catch (const distx::Error& error) {
      if (comm.rank() == 0) failure = error.what();
    }
    connector.barrier();
    distx::broadcast(comm, values, 0);
    if (comm.rank() == 0) ledger = comm.ledger();
    if (comm.rank() == 0 && (comm.ledger() - before).entries().size() != 1)
      throw std::runtime_error("a difference has what did not change, or lacks what did");
  });
  CHECK(failure.find("send has 4 elements, receive has 3") != std::string::npos);
  CHECK(ledger["all_reduce"] == Traffic{4, 4 * 32, 4 * 32, 4 * 32});
  CHECK(ledger["broadcast"] == Traffic{1, 32, 32, 0});
  CHECK(ledger["gather"] == Traffic{});
  CHECK(ledger.entries().size() == 2);
}

}  // namespace
