// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Calls that differ throw on every rank, with a message that names the rank and its argument.
#include <doctest/doctest.h>

#include "comm/outcomes.hpp"

namespace {

using Comm = distx::ThreadCommunicator;
using test::Outcome;
using test::outcomes;

/// Checks the messages if rank 2 of 4 makes a different call: it names rank 0's call, the other ranks name rank 2's.
void check_odd_one(const std::vector<Outcome>& all, const std::string& of_rank_2, const std::string& of_rank_0) {
  REQUIRE(all.size() == 4);
  for (const std::size_t rank : {0u, 1u, 2u, 3u}) {
    CAPTURE(rank);
    CAPTURE(all[rank].words);
    CHECK(all[rank].type == "MismatchError");
    CHECK(all[rank].says(rank == 2 ? of_rank_0 : of_rank_2));
    CHECK(all[rank].says("on rank " + std::to_string(rank) + " of 4 (threads): "));
  }
}

TEST_CASE("all_reduce rejects different lengths on every rank") {
  unsigned line = 0;
  const auto all = outcomes(4, [&](Comm& comm) {
    std::vector<float> values(comm.rank() == 2 ? 8 : 10);
    if (comm.rank() == 0) line = std::source_location::current().line() + 1;
    distx::all_reduce(comm, values, distx::sum);
  });
  check_odd_one(all, "rank 2 passes 8 elements, this rank 10", "rank 0 passes 10 elements, this rank 8");
  CHECK(all[3].words ==
        "distx: all_reduce on rank 3 of 4 (threads): rank 2 passes 8 elements, this rank "
        "10 [mismatch_test.cpp:" +
            std::to_string(line) + "]");
}

TEST_CASE("every collective rejects different lengths on every rank") {
  const auto length = [](Comm& comm) { return static_cast<std::size_t>(comm.rank() == 2 ? 8 : 10); };
  const std::string of_2 = "rank 2 passes 8 elements, this rank 10";
  const std::string of_0 = "rank 0 passes 10 elements, this rank 8";
  check_odd_one(outcomes(4,
                         [&](Comm& comm) {
                           std::vector<int> values(length(comm));
                           distx::broadcast(comm, values, 1);
                         }),
                of_2, of_0);
  check_odd_one(outcomes(4,
                         [&](Comm& comm) {
                           std::vector<int> values(length(comm));
                           distx::reduce(comm, values, distx::max, 3);
                         }),
                of_2, of_0);
  check_odd_one(outcomes(4,
                         [&](Comm& comm) {
                           std::vector<int> send(length(comm)), receive(4 * length(comm));
                           distx::all_gather(comm, send, receive);
                         }),
                of_2, of_0);
  check_odd_one(outcomes(4,
                         [&](Comm& comm) {
                           std::vector<int> send(4 * length(comm)), receive(length(comm));
                           distx::reduce_scatter(comm, send, receive, distx::sum);
                         }),
                of_2, of_0);
  check_odd_one(outcomes(4,
                         [&](Comm& comm) {
                           std::vector<int> send(4 * length(comm)), receive(4 * length(comm));
                           distx::all_to_all(comm, send, receive);
                         }),
                "rank 2 passes 32 elements, this rank 40", "rank 0 passes 40 elements, this rank 32");
}

TEST_CASE("the wait of an asynchronous call throws a mismatch") {
  const auto all = outcomes(4, [&](Comm& comm) {
    std::vector<float> values(comm.rank() == 2 ? 8 : 10);
    auto pending = distx::start_all_reduce(comm, values, distx::sum);
    pending.wait();
  });
  check_odd_one(all, "rank 2 passes 8 elements, this rank 10", "rank 0 passes 10 elements, this rank 8");
}

TEST_CASE("different ops, types, roots and operations are a mismatch on every rank") {
  check_odd_one(outcomes(4,
                         [](Comm& comm) {
                           std::vector<float> values(3);
                           if (comm.rank() == 2)
                             distx::all_reduce(comm, values, distx::max);
                           else
                             distx::all_reduce(comm, values, distx::sum);
                         }),
                "rank 2 reduces with another op", "rank 0 reduces with another op");
  check_odd_one(outcomes(4,
                         [](Comm& comm) {
                           std::vector<float> floats(3);
                           std::vector<std::int32_t> integers(3);
                           if (comm.rank() == 2)
                             distx::all_reduce(comm, integers, distx::sum);
                           else
                             distx::all_reduce(comm, floats, distx::sum);
                         }),
                "rank 2 passes int32 elements, this rank float32", "rank 0 passes float32 elements, this rank int32");
  check_odd_one(outcomes(4,
                         [](Comm& comm) {
                           std::vector<float> values(3);
                           distx::broadcast(comm, values, comm.rank() == 2 ? 3 : 1);
                         }),
                "rank 2 names rank 3 as root, this rank 1", "rank 0 names rank 1 as root, this rank 3");
  check_odd_one(outcomes(4,
                         [](Comm& comm) {
                           std::vector<float> values(3);
                           if (comm.rank() == 2)
                             distx::broadcast(comm, values, 0);
                           else
                             distx::all_reduce(comm, values, distx::sum);
                         }),
                "rank 2 calls broadcast, this rank all_reduce", "rank 0 calls all_reduce, this rank broadcast");
  check_odd_one(outcomes(4,
                         [](Comm& comm) {
                           std::vector<float> values(3);
                           if (comm.rank() == 2)
                             distx::barrier(comm);
                           else
                             distx::broadcast(comm, values, 0);
                         }),
                "rank 2 calls barrier, this rank broadcast", "rank 0 calls broadcast, this rank barrier");
}

TEST_CASE("structs of different sizes are a mismatch on every rank") {
  struct Pair {
    int a, b;
  };
  struct Triple {
    int a, b, c;
  };
  check_odd_one(outcomes(4,
                         [](Comm& comm) {
                           std::vector<Pair> pairs(3);
                           std::vector<Triple> triples(3);
                           if (comm.rank() == 2)
                             distx::broadcast(comm, triples, 0);
                           else
                             distx::broadcast(comm, pairs, 0);
                         }),
                "rank 2 passes elements of 12 bytes, this rank of 8",
                "rank 0 passes elements of 8 bytes, this rank of 12");
}

TEST_CASE("different counts are a mismatch on every rank") {
  const auto gathered = outcomes(4, [](Comm& comm) {
    const std::vector<std::size_t> counts =
        comm.rank() == 2 ? std::vector<std::size_t>{1, 1, 2, 0} : std::vector<std::size_t>{1, 0, 2, 1};
    std::vector<int> send(counts[static_cast<std::size_t>(comm.rank())]), receive(4);
    distx::all_gather(comm, send, receive, counts);
  });
  check_odd_one(gathered, "rank 2 passes other counts", "rank 0 passes other counts");

  // Rank 3 sends the root two elements more than it expects: every rank throws.
  const auto rooted = outcomes(4, [](Comm& comm) {
    const std::vector<std::size_t> counts{1, 2, 3, 4};
    std::vector<int> send(static_cast<std::size_t>(comm.rank() == 3 ? 6 : comm.rank() + 1)), receive(10);
    distx::gather(comm, send, receive, 1, counts);
  });
  CHECK_MESSAGE(all_say(rooted, "MismatchError", "rank 3 sends 6 elements to rank 1, which receives 4"),
                text_of(rooted));
  const auto scattered = outcomes(4, [](Comm& comm) {
    std::vector<int> send(8), receive(comm.rank() == 3 ? 1 : 2);
    distx::scatter(comm, send, receive, 0);
  });
  CHECK_MESSAGE(all_say(scattered, "MismatchError", "rank 0 sends 2 elements to rank 3, which receives 1"),
                text_of(scattered));
  const auto exchanged = outcomes(2, [](Comm& comm) {
    const std::vector<std::size_t> send_counts{1, 1};
    const std::vector<std::size_t> receive_counts =
        comm.rank() == 0 ? std::vector<std::size_t>{1, 3} : std::vector<std::size_t>{1, 1};
    std::vector<int> send(2), receive(receive_counts[0] + receive_counts[1]);
    distx::all_to_all(comm, send, receive, send_counts, receive_counts);
  });
  CHECK_MESSAGE(all_say(exchanged, "MismatchError", "rank 1 sends 1 elements to rank 0, which receives 3"),
                text_of(exchanged));
}

TEST_CASE("an all_to_all with counts on one rank only does not access other ranks' memory") {
  std::vector<int> around(15, 7);
  const auto all = outcomes(2, [&](Comm& comm) {
    std::vector<int> send(5, 42), receive;
    const std::vector<std::size_t> to{0, 5}, from{0, 0};
    const auto nothing = distx::Span<int>(around).subspan(5, 0);
    if (comm.rank() == 0)
      distx::all_to_all(comm, send, receive, to, from);
    else
      distx::all_to_all(comm, distx::Span<const int>{}, nothing);
  });
  CHECK_MESSAGE(all_say(all, "MismatchError", " passes other counts"), text_of(all));
  CHECK(around == std::vector<int>(15, 7));
}

TEST_CASE("lists with the same lengths in another order are a mismatch on every rank") {
  using Lengths = std::vector<std::size_t>;
  using List = std::vector<std::vector<float>>;
  const auto list = [](const Lengths& lengths, std::size_t ranks = 1) {
    List items;
    for (const auto length : lengths) items.emplace_back(length * ranks);
    return items;
  };
  const auto check = [&](const Lengths& usual, const Lengths& odd, const std::string& of_2, const std::string& of_0,
                         void (*call)(Comm&, List&, List&)) {
    check_odd_one(outcomes(4,
                           [&](Comm& comm) {
                             auto whole = list(comm.rank() == 2 ? odd : usual);
                             auto blocks = list(comm.rank() == 2 ? odd : usual, 4);
                             call(comm, whole, blocks);
                           }),
                  of_2, of_0);
  };
  const std::string packed = " passes other counts";
  const std::vector<void (*)(Comm&, List&, List&)> calls{
      [](Comm& comm, List& whole, List&) { distx::all_reduce(comm, whole, distx::sum); },
      [](Comm& comm, List& whole, List&) { distx::start_all_reduce(comm, whole, whole, distx::sum).wait(); },
      [](Comm& comm, List& whole, List&) { distx::reduce(comm, whole, distx::sum, 1); },
      [](Comm& comm, List& whole, List&) { distx::broadcast(comm, whole, 1); },
      [](Comm& comm, List& whole, List& blocks) { distx::all_gather(comm, whole, blocks); },
      [](Comm& comm, List& whole, List& blocks) { distx::reduce_scatter(comm, blocks, whole, distx::sum); },
      [](Comm& comm, List&, List& blocks) { distx::all_to_all(comm, blocks, blocks); },
      [](Comm& comm, List& whole, List& blocks) { distx::gather(comm, whole, blocks, 1); },
      [](Comm& comm, List& whole, List& blocks) { distx::scatter(comm, blocks, whole, 1); },
  };
  for (const auto& call : calls) check({3, 5}, {5, 3}, "rank 2" + packed, "rank 0" + packed, call);
  // Large items are transferred individually, before the packed ones.
  check({3, 5, 40000}, {40000, 3, 5}, "rank 2" + packed, "rank 0" + packed, calls[0]);
  check({3, 40000}, {40000, 3}, "rank 2 passes 40000 elements, this rank 3",
        "rank 0 passes 3 elements, this rank 40000", calls[0]);
}

TEST_CASE("messages of different sizes or types are a mismatch on both ranks") {
  const auto lengths = outcomes(2, [](Comm& comm) {
    std::vector<float> values(comm.rank() == 0 ? 3 : 5);
    if (comm.rank() == 0)
      distx::send(comm, values, 1);
    else
      distx::receive(comm, values, 0);
  });
  CHECK(lengths[0].type == "MismatchError");
  CHECK(lengths[0].says("sends 3 elements of type float32, rank 1 expects 5 elements of type float32"));
  CHECK(lengths[1].type == "MismatchError");
  CHECK(lengths[1].says("expects 5 elements of type float32, rank 0 sends 3 elements of type float32"));
  const auto types = outcomes(2, [](Comm& comm) {
    std::vector<float> floats(2);
    std::vector<std::uint32_t> integers(2);
    if (comm.rank() == 0)
      distx::send(comm, floats, 1);
    else
      distx::receive(comm, integers, 0);
  });
  CHECK(types[0].says("sends 2 elements of type float32, rank 1 expects 2 elements of type uint32"));
  CHECK(types[1].says("expects 2 elements of type uint32, rank 0 sends 2 elements of type float32"));
}

TEST_CASE("a self-send without a receive throws instead of blocking") {
  const auto all = outcomes(2, [](Comm& comm) {
    int value = 0;
    distx::send(comm, value, comm.rank());
  });
  // The first rank to find it revokes the communicator.
  for (const auto& outcome : all) {
    CHECK((outcome.type == "InvalidState" || outcome.type == "RevokedError"));
    CHECK(outcome.says("to self would deadlock"));
  }
}

TEST_CASE("invalid arguments are rejected on the rank that passes them") {
  const auto words = [](auto f) {
    const auto all = outcomes(2, f);
    CHECK_MESSAGE(all[0].type == "InvalidArgument", text_of(all));
    return all[0].words.substr(0, all[0].words.rfind(" ["));
  };
  std::vector<float> three(3), four(4), six(6);
  using Sizes = std::vector<std::size_t>;
  CHECK(words([](Comm& comm) {
          std::vector<float> send(10), receive(8);
          distx::all_reduce(comm, send, receive, distx::sum);
        }) == "distx: all_reduce on rank 0 of 2 (threads): send has 10 elements, receive has 8");
  CHECK(words([](Comm& comm) { distx::barrier(comm), distx::broadcast(comm, std::vector<int>(1), 2); }) ==
        "distx: broadcast on rank 0 of 2 (threads): invalid root 2: must be in [0, 2)");
  CHECK(words([](Comm& comm) { distx::reduce(comm, std::vector<int>(1), distx::sum, -1); }) ==
        "distx: reduce on rank 0 of 2 (threads): invalid root -1: must be in [0, 2)");
  CHECK(words([](Comm& comm) { distx::gather(comm, std::vector<int>(1), std::vector<int>(2), 7); }) ==
        "distx: gather on rank 0 of 2 (threads): invalid root 7: must be in [0, 2)");
  CHECK(words([](Comm& comm) { distx::scatter(comm, std::vector<int>(2), std::vector<int>(1), 7); }) ==
        "distx: scatter on rank 0 of 2 (threads): invalid root 7: must be in [0, 2)");
  CHECK(words([](Comm& comm) { distx::send(comm, 1, 2); }) ==
        "distx: send on rank 0 of 2 (threads): invalid receiver 2: must be in [0, 2)");
  CHECK(words([](Comm& comm) {
          int value = 0;
          distx::receive(comm, value, -3);
        }) == "distx: receive on rank 0 of 2 (threads): invalid sender -3: must be in [0, 2)");
  CHECK(words([](Comm& comm) { distx::send(comm, 1, 1, -1); }) ==
        "distx: send on rank 0 of 2 (threads): invalid tag -1: must not be negative");
  CHECK(words([](Comm& comm) { distx::all_to_all(comm, std::vector<int>(3), std::vector<int>(3)); }) ==
        "distx: all_to_all on rank 0 of 2 (threads): send has 3 elements, not a multiple of the 2 ranks: pass "
        "send_counts and receive_counts");
  CHECK(words([](Comm& comm) { distx::all_gather(comm, std::vector<int>(3), std::vector<int>(5)); }) ==
        "distx: all_gather on rank 0 of 2 (threads): receive has 5 elements, the ranks send in all 6");
  CHECK(words([](Comm& comm) { distx::reduce_scatter(comm, std::vector<int>(5), std::vector<int>(3), distx::sum); }) ==
        "distx: reduce_scatter on rank 0 of 2 (threads): send has 5 elements, the ranks receive in all 6");
  CHECK(words([](Comm& comm) { distx::all_gather(comm, std::vector<int>(1), std::vector<int>(3), Sizes{1, 1, 1}); }) ==
        "distx: all_gather on rank 0 of 2 (threads): counts has 3 entries, expected one per rank (2)");
  CHECK(words([](Comm& comm) { distx::all_gather(comm, std::vector<int>(2), std::vector<int>(3), Sizes{1, 2}); }) ==
        "distx: all_gather on rank 0 of 2 (threads): send has 2 elements, its count is 1");
  CHECK(words([](Comm& comm) {
          distx::all_to_all(comm, std::vector<int>(2), std::vector<int>(2), Sizes{2, 0}, Sizes{1, 1});
        }) == "distx: all_to_all on rank 0 of 2 (threads): this rank sends itself 2 elements and receives 1");
  CHECK(words([](Comm& comm) {
          distx::all_to_all(comm, std::vector<int>(2), std::vector<int>(2), Sizes{1, 1}, Sizes{});
        }) ==
        "distx: all_to_all on rank 0 of 2 (threads): send_counts and receive_counts must be given both, or neither");
}

TEST_CASE("an erased call is rejected if its op or its spans have other element types") {
  const auto op = outcomes(2, [](Comm& comm) {
    std::vector<float> values(4);
    comm.execute(distx::calls::AllReduce<distx::AnyElement, distx::calls::AnyOp>{
        distx::Span<const float>(values), distx::Span<float>(values), distx::calls::AnyOp::make<double>(distx::sum)});
  });
  CHECK_MESSAGE(
      all_say(op, "InvalidArgument", "the op reduces elements of type float64, send has elements of type float32"),
      text_of(op));
  const auto spans = outcomes(2, [](Comm& comm) {
    std::vector<float> send(4);
    std::vector<double> receive(4);
    comm.execute(distx::calls::AllReduce<distx::AnyElement, distx::calls::AnyOp>{
        distx::Span<const float>(send), distx::Span<double>(receive), distx::calls::AnyOp::make<float>(distx::sum)});
  });
  CHECK_MESSAGE(all_say(spans, "InvalidArgument", "receive of type float64"), text_of(spans));
  const auto bytes = outcomes(2, [](Comm& comm) {
    float value = 0;
    const distx::Span<distx::AnyElement> any(&value, 1, distx::ElementType::bytes, sizeof value);
    comm.execute(distx::calls::AllReduce<distx::AnyElement, distx::calls::AnyOp>{any, any, {}});
  });
  CHECK_MESSAGE(all_say(bytes, "InvalidArgument", "elements of type bytes cannot be reduced"), text_of(bytes));
}

struct Scaled {
  int factor;
  float operator()(float a, float b) const { return a + static_cast<float>(factor) * b; }
};

TEST_CASE("ops of one type with different state are a mismatch on every rank") {
  check_odd_one(outcomes(4,
                         [](Comm& comm) {
                           std::vector<float> values(3);
                           distx::all_reduce(comm, values, Scaled{comm.rank() == 2 ? 2 : 1});
                         }),
                "rank 2 reduces with another op", "rank 0 reduces with another op");
}

TEST_CASE("different groupings are a mismatch on every rank") {
  const auto all = outcomes(2, [](Comm& comm) {
    auto group = distx::groups(comm, comm.rank() == 0 ? distx::Grouping{{0, 1}} : distx::Grouping{{0}, {1}});
  });
  CHECK_MESSAGE(all_say(all, "MismatchError", "asks for other groups than this rank"), text_of(all));
}

TEST_CASE("a list sent with lengths in another order is a mismatch on both ranks") {
  const auto all = outcomes(2, [](Comm& comm) {
    std::vector<std::vector<int>> list(2);
    list[0].resize(comm.rank() == 0 ? 1 : 2);
    list[1].resize(comm.rank() == 0 ? 2 : 1);
    if (comm.rank() == 0)
      distx::send(comm, list, 1);
    else
      distx::receive(comm, list, 0);
  });
  CHECK_MESSAGE(all_say(all, "MismatchError", "in a list of other lengths or in another order"), text_of(all));
}

TEST_CASE("partly overlapping spans are rejected") {
  const std::string sentence = "send and receive overlap: they must be disjoint";
  std::vector<float> shared(20);
  const auto part = [](std::vector<float>& values, std::size_t begin, std::size_t count) {
    return distx::Span<float>(values).subspan(begin, count);
  };
  const auto check = [&](auto f) {
    const auto all = outcomes(2, [&](Comm& comm) {
      std::vector<float> values(20);
      f(comm, values);
    });
    CHECK_MESSAGE(all_say(all, "InvalidArgument", sentence), text_of(all));
  };
  check([&](Comm& comm, auto& v) { distx::all_reduce(comm, part(v, 0, 8), part(v, 1, 8), distx::sum); });
  check([&](Comm& comm, auto& v) { distx::all_gather(comm, part(v, 2, 4), part(v, 0, 8)); });
  check([&](Comm& comm, auto& v) { distx::reduce_scatter(comm, part(v, 0, 8), part(v, 1, 4), distx::sum); });
  check([&](Comm& comm, auto& v) { distx::all_to_all(comm, part(v, 0, 8), part(v, 4, 8)); });
  check([&](Comm& comm, auto& v) {
    const std::vector<std::size_t> counts{4, 4};
    distx::all_to_all(comm, part(v, 0, 8), part(v, 0, 8), counts, counts);
  });
  check([&](Comm& comm, auto& v) { distx::send_receive(comm, part(v, 0, 8), 0, part(v, 0, 8), 0); });
  // Adjacent spans do not overlap.
  const auto apart = outcomes(2, [&](Comm& comm) {
    std::vector<float> values(20);
    distx::all_reduce(comm, part(values, 0, 10), part(values, 10, 10), distx::sum);
  });
  CHECK_MESSAGE(all_say(apart, "done", ""), text_of(apart));
}

TEST_CASE("an invalid call on one rank revokes the communicator on the others") {
  const auto all = outcomes(3, [](Comm& comm) {
    std::vector<float> values(4);
    if (comm.rank() == 1)
      distx::broadcast(comm, values, 9);
    else
      distx::broadcast(comm, values, 0);
  });
  CHECK(all[1].type == "InvalidArgument");
  for (const std::size_t rank : {0u, 2u}) {
    CHECK(all[rank].type == "RevokedError");
    CHECK(all[rank].says("rank 1 revoked the communicator: broadcast on rank 1 of 3 (threads): invalid root 9"));
    CHECK_MESSAGE(all[rank].words.rfind("distx: ") == 0, text_of(all));  // once
  }
}

TEST_CASE("different lists are a mismatch on every rank") {
  const auto lengths = outcomes(3, [](Comm& comm) {
    std::vector<float> first(comm.rank() == 1 ? 5 : 4), second(7);
    distx::all_reduce(comm, std::vector<distx::Span<float>>{first, second}, distx::sum);
  });
  for (const auto& outcome : lengths) CHECK(outcome.type == "MismatchError");
  const auto local = outcomes(2, [](Comm& comm) {
    std::vector<std::vector<float>> send(2, std::vector<float>(3)), receive(3, std::vector<float>(3));
    distx::all_reduce(comm, send, receive, distx::sum);
  });
  CHECK_MESSAGE(all_say(local, "InvalidArgument", "the list to send has 2 items, the list to receive 3"),
                text_of(local));
}

}  // namespace
