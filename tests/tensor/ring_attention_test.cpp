// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/comm/decorators/metered.hpp>
#include <distx/tensor.hpp>
#include <distx/tensor/ops/ring_attention.hpp>
#include <distx/threads.hpp>

#include <chrono>
#include <map>
#include <mutex>

#include "message_thrown.hpp"

namespace ring_attention_test {

namespace {

struct Data {};
struct Context {};
struct Model {};
using Grid = distx::Mesh<Data, Context, Model>;
using Comm = distx::Metered<distx::ThreadCommunicator>;
using distx::Shard;
using Sizes = std::array<int, 3>;
using distx::detail::RingBlock;

template <class F>
void on_grid(const Sizes& sizes, F&& f) {
  using namespace std::chrono_literals;
  distx::spawn(distx::threads(sizes[0] * sizes[1] * sizes[2], 20s), [&](distx::ThreadConnector& connector) {
    Comm comm{distx::ThreadCommunicator(connector, 20s)};
    const Grid mesh(comm, sizes);
    f(mesh, comm);
  });
}

/// A number for each element, by its index in whole sequences: scores differ by up to e^8.
template <std::size_t Rank>
double number(const distx::Extents<Rank>& index, double seed) {
  double at = seed;
  for (const auto i : index) at = 1.7 * at + static_cast<double>(i);
  return 2 * std::sin(at);
}
/// The same of tokens in the ring's order.
auto in_order(const distx::ops::Zigzag& order, double seed) {
  return [=](auto index) {
    index[1] = order.position(index[1]);
    return number(index, seed);
  };
}

struct Shape {
  std::size_t batch, length, heads, size;

  [[nodiscard]] distx::Extents<5> projected() const { return {batch, length, 3, heads, size}; }
  [[nodiscard]] distx::Extents<4> output() const { return {batch, length, heads, size}; }
};

/// Whole attention, and the numbers that its results are compared with.
template <class T>
struct Expected {
  std::vector<double> output, gradient;

  explicit Expected(const Shape& shape) {
    on_grid({1, 1, 1}, [&](const Grid& mesh, Comm&) {
      const auto x = distx::generate<T>(mesh, shape.projected(), [](const auto& i) { return number(i, 1); });
      const auto slope = distx::generate<T>(mesh, shape.output(), [](const auto& i) { return number(i, 2); });
      const auto y = distx::ops::causal_attention(x);
      const auto of_x = distx::ops::causal_attention_backward(x, slope);
      output.assign(y.local().begin(), y.local().end());
      gradient.assign(of_x.local().begin(), of_x.local().end());
    });
  }
};

/// The largest distance of a rank's part from whole numbers, whose tokens are in the order of positions.
template <class X>
double distance(const X& part, const std::vector<double>& whole, const distx::ops::Zigzag& order) {
  double most = 0;
  std::size_t local = 0;
  distx::detail::for_each_index<distx::detail::rank_of<X>>(distx::detail::box_of(part), [&](const auto& index) {
    std::size_t at = 0;
    for (std::size_t d = 0; d < index.size(); ++d)
      at = at * part.extent(d) + (d == 1 ? order.position(index[d]) : index[d]);
    most = std::max(most, std::abs(static_cast<double>(part.local()[local++]) - whole[at]));
  });
  return most;
}

/// Ring attention and its gradient on all ranks of a grid, whose results are within `bound` of the expected ones.
template <class T>
void check(const Sizes& sizes, const Shape& shape, const Expected<T>& expected, double bound) {
  INFO(sizes[0], " x ", sizes[1], " x ", sizes[2], ", length ", shape.length, ", heads ", shape.heads);
  on_grid(sizes, [&](const Grid& mesh, Comm& comm) {
    const distx::ops::Zigzag order(shape.length, sizes[1]);
    const auto x = distx::generate<T, Shard<0, Data>, Shard<1, Context>, Shard<3, Model>>(mesh, shape.projected(),
                                                                                          in_order(order, 1));
    const auto slope = distx::generate<T, Shard<0, Data>, Shard<1, Context>, Shard<2, Model>>(mesh, shape.output(),
                                                                                              in_order(order, 2));
    const auto before = comm.ledger();
    const auto [y, log_sums] = distx::ops::ring_attention(x);
    const auto between = comm.ledger();
    const auto of_x = distx::ops::ring_attention_backward(x, y, log_sums, slope);
    const auto forward = between - before, backward = comm.ledger() - between;
    CHECK(distance(y, expected.output, order) < bound);
    CHECK(distance(of_x, expected.gradient, order) < 4 * bound);

    // Of n elements of keys a rank sends 2n, and backward 4n, for each other rank.
    const auto others = static_cast<std::size_t>(sizes[1] - 1);
    const std::size_t block = 2 * y.local().size() * sizeof(T);
    CHECK(forward.total() == forward["send_receive"]);
    CHECK(forward.total().calls == others);
    CHECK(forward.total().sent_bytes == others * block);
    CHECK(forward.total().received_bytes == others * block);
    CHECK(backward.total() == backward["send_receive"]);
    CHECK(backward.total().calls == 2 * others);
    CHECK(backward.total().sent_bytes == 2 * others * block);
  });
}

}  // namespace

TEST_CASE("ring attention and its gradient equal whole attention") {
  for (const Shape shape : {Shape{1, 24, 1, 4}, {2, 24, 3, 5}, {3, 48, 2, 8}, {2, 120, 1, 1}}) {
    const Expected<double> expected(shape);
    const Expected<float> in_float(shape);
    for (const int ranks : {1, 2, 3, 4}) {
      check<double>({1, ranks, 1}, shape, expected, 2e-14);
      check<float>({1, ranks, 1}, shape, in_float, 5e-7);
    }
    check<double>({2, 2, 1}, shape, expected, 2e-14);
    check<double>({1, 2, 2}, shape, expected, 2e-14);  // of one head, one rank has none
  }
  const Shape odd{2, 5, 2, 3};
  check<double>({1, 1, 1}, odd, Expected<double>(odd), 2e-14);
  const Shape one_token_each{1, 8, 2, 3};
  check<double>({1, 4, 1}, one_token_each, Expected<double>(one_token_each), 2e-14);
  const Shape no_sequence{0, 8, 2, 3};
  check<double>({1, 2, 1}, no_sequence, Expected<double>(no_sequence), 2e-14);
}

TEST_CASE("each rank of a ring computes equally many scores with each block, and each score once") {
  for (const int ranks : {1, 2, 3, 4, 7})
    for (const std::size_t chunk : {1U, 2U, 5U}) {
      INFO(ranks, " ranks, chunks of ", chunk);
      const std::size_t each = 2 * chunk, length = each * static_cast<std::size_t>(ranks);
      const distx::ops::Zigzag order(length, ranks);
      std::map<std::pair<std::size_t, std::size_t>, int> scores;
      for (int rank = 0; rank < ranks; ++rank)
        for (int source = 0; source < ranks; ++source) {
          const auto block = RingBlock::of(rank, source, each);
          std::size_t computed = 0;
          CHECK(block.last_query == each);
          for (std::size_t t = block.first_query; t < block.last_query; ++t)
            for (std::size_t s = 0; s < block.keys_of(t); ++s, ++computed)
              ++scores[{order.position(static_cast<std::size_t>(rank) * each + t),
                        order.position(static_cast<std::size_t>(source) * each + s)}];
          CHECK(computed == (rank == source ? each * (each + 1) / 2 : each * each / 2));
        }
      CHECK(scores.size() == length * (length + 1) / 2);
      for (const auto& [place, times] : scores) {
        CHECK(place.second <= place.first);
        CHECK(times == 1);
      }
    }
}

TEST_CASE("an all-to-all of heads sends 8n(C - 1)/C elements, where a ring of C ranks sends 6n(C - 1)") {
  for (const int ranks : {2, 3, 4})
    on_grid({1, ranks, 1}, [&](const Grid& mesh, Comm&) {
      using Tokens = distx::Layout<Shard<1, Context>>;
      const auto c = static_cast<std::size_t>(ranks);
      const Shape shape{2, 24, 12, 4};
      const std::size_t n = 2 * 24 * 12 * 4 / c;
      const auto to_heads =
          distx::redistribution_cost<Tokens, distx::Layout<Shard<3, Context>>, float>(mesh, shape.projected());
      const auto to_tokens =
          distx::redistribution_cost<distx::Layout<Shard<2, Context>>, Tokens, float>(mesh, shape.output());
      // Backward, the same bytes go the other way.
      CHECK(2 * (to_heads.largest_sent + to_tokens.largest_sent) == 8 * n * (c - 1) / c * sizeof(float));
    });
}

TEST_CASE("ring attention has the same bits on every width of vector registers") {
  const Shape shape{2, 48, 2, 5};
  const std::size_t widest = distx::detail::lane_bytes();
  const auto bits = [&](std::size_t bytes) {
    distx::detail::lane_bytes() = bytes;
    std::array<std::vector<float>, 2> of_rank;
    on_grid({1, 2, 1}, [&](const Grid& mesh, Comm& comm) {
      const distx::ops::Zigzag order(shape.length, 2);
      const auto x = distx::generate<float, Shard<1, Context>>(mesh, shape.projected(), in_order(order, 1));
      const auto slope = distx::generate<float, Shard<1, Context>>(mesh, shape.output(), in_order(order, 2));
      const auto [y, log_sums] = distx::ops::ring_attention(x);
      const auto of_x = distx::ops::ring_attention_backward(x, y, log_sums, slope);
      auto& all = of_rank[static_cast<std::size_t>(comm.rank())];
      all.assign(y.local().begin(), y.local().end());
      all.insert(all.end(), of_x.local().begin(), of_x.local().end());
    });
    distx::detail::lane_bytes() = widest;
    return of_rank;
  };
  const auto narrow = bits(16);
  for (std::size_t bytes = 32; bytes <= widest; bytes *= 2) CHECK(bits(bytes) == narrow);
}

TEST_CASE("a zigzag order gives each rank a chunk from both ends") {
  const distx::ops::Zigzag order(12, 3);
  std::vector<std::size_t> positions;
  for (std::size_t i = 0; i < 12; ++i) positions.push_back(order.position(i));
  CHECK(positions == std::vector<std::size_t>{0, 1, 10, 11, 2, 3, 8, 9, 4, 5, 6, 7});
  CHECK(distx::ops::Zigzag(7, 1).position(5) == 5);
  CHECK(test::message_thrown<distx::InvalidArgument>([] {
          static_cast<void>(distx::ops::Zigzag(4, 0));
        }).find("invalid number of ranks 0: must be at least 1") != std::string::npos);
}

TEST_CASE("ring attention refuses lengths that it cannot balance, and ranks continue") {
  on_grid({1, 3, 1}, [](const Grid& mesh, Comm&) {
    for (const std::size_t length : {1U, 3U, 4U, 9U, 16U}) {
      const auto x = distx::zeros<double, Shard<1, Context>>(mesh, {1, length, 3, 2, 2});
      const auto words =
          test::message_thrown<distx::InvalidArgument>([&] { static_cast<void>(distx::ops::ring_attention(x)); });
      CHECK(words.find("invalid length " + std::to_string(length) + " of sequences on 3 ranks") != std::string::npos);
      CHECK(words.find("must be a multiple of 6") != std::string::npos);
      CHECK(words.find("ring_attention_test.cpp") != std::string::npos);
    }
    const auto x = distx::zeros<double, Shard<1, Context>>(mesh, {1, 6, 3, 2, 2});
    const auto [zeros, log_sums] = distx::ops::ring_attention(x);
    CHECK(zeros.local()[0] == 0);
    const auto y = distx::zeros<double, Shard<1, Context>>(mesh, {1, 12, 2, 2});
    CHECK(test::message_thrown<distx::InvalidArgument>([&] {
            static_cast<void>(distx::ops::ring_attention_backward(x, y, log_sums, y));
          }).find("must be those of x") != std::string::npos);
  });
}

TEST_CASE("a rank that leaves a ring causes typed errors on the others") {
  for (const bool backward : {false, true}) {
    int revoked = 0;
    std::mutex counting;
    const auto on_rank = [&](const Grid& mesh, Comm& comm) {
      const auto x = distx::zeros<float, Shard<1, Context>>(mesh, {1, 12, 3, 1, 2});
      const auto y = distx::zeros<float, Shard<1, Context>>(mesh, {1, 12, 1, 2});
      const auto log_sums = distx::zeros<double, Shard<1, Context>>(mesh, {1, 12, 1});
      if (comm.rank() == 1) throw std::runtime_error("of a test");
      try {
        if (backward)
          static_cast<void>(distx::ops::ring_attention_backward(x, y, log_sums, y));
        else
          static_cast<void>(distx::ops::ring_attention(x));
      } catch (const distx::RevokedError&) {
        const std::lock_guard lock(counting);
        ++revoked;
        throw;
      }
    };
    CHECK_THROWS_WITH(on_grid({1, 3, 1}, on_rank), doctest::Contains("of a test"));
    CHECK(revoked == 2);
  }
}

}  // namespace ring_attention_test
