// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The contract of every connector, at several numbers of ranks, each a thread of this program. starting.py and ranks.py
// test processes, and one that is killed; tests/mpi tests MPI.
#include <doctest/doctest.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "connect/fake_store.hpp"
#include "connect/wait_for_failure.hpp"
#include "distx/connect/key_value.hpp"
#include "distx/connect/tcp/detail/start_by_store.hpp"
#include "distx/threads.hpp"
#include "words.hpp"

namespace {

using distx::AnyConnector;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::error_of;
using test::expect;
using test::Messages;
using Body = std::function<void(AnyConnector&)>;

/// Runs the body as thread ranks; returns the message of what each threw, empty if nothing.
template <class Ranks>
Messages each_spawned(int size, Ranks ranks, const Body& body) {
  Messages messages(static_cast<std::size_t>(size));
  try {
    distx::spawn(ranks, [&](auto& connector) {
      try {
        AnyConnector any = connector;
        body(any);
      } catch (const std::exception& error) {
        messages[static_cast<std::size_t>(connector.rank())] = error.what();
        throw;
      }
    });
  } catch (const distx::RankFailure&) {  // its message is known
  }
  return messages;
}

struct Kind {
  const char* name;
  Messages (*run)(int size, distx::Timeout deadline, const Body& body);
  int most = 7;  ///< the largest number of ranks
  bool notices_failures = true;
};

Messages run_alone(int, distx::Timeout, const Body& body) {
  return test::each(1, [&](int) {
    AnyConnector self = distx::SelfConnector();
    body(self);
  });
}
Messages run_threads(int size, distx::Timeout deadline, const Body& body) {
  return each_spawned(size, distx::threads(size, deadline), body);
}
Messages run_in_folder(int size, distx::Timeout deadline, const Body& body) {
  const test::NewFolder folder;
  return test::each(size, [&](int rank) {
    AnyConnector connector = distx::FileConnector(folder.path(), rank, size, {.deadline = deadline});
    body(connector);
  });
}
Messages run_over_tcp(int size, distx::Timeout deadline, const Body& body) {
  const int port = test::free_port();
  return test::each(size, [&](int rank) {
    AnyConnector connector =
        distx::TcpConnector("127.0.0.1", port, rank, size, {.deadline = deadline, .token = "secret"});
    body(connector);
  });
}
Messages run_by_store(int size, distx::Timeout deadline, const Body& body) {
  test::FakeStore store;
  return test::each(size, [&](int rank) {
    AnyConnector connector =
        test::tcp::start_by_store({"127.0.0.1", store.port()}, "distx/job/0/", true, {rank, size, deadline, {}});
    body(connector);
  });
}
/// The smallest KeyValueStore: a map of one process.
struct Map {
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<std::string, std::string> values;
  };
  std::shared_ptr<Shared> shared = std::make_shared<Shared>();

  void set(const std::string& key, const std::string& value) {
    const std::lock_guard lock(shared->mutex);
    shared->values[key] = value;
    shared->changed.notify_all();
  }
  std::optional<std::string> get(const std::string& key, milliseconds limit) {
    std::unique_lock lock(shared->mutex);
    if (!shared->changed.wait_for(lock, limit, [&] { return shared->values.contains(key); })) return std::nullopt;
    return shared->values[key];
  }
};
Messages run_by_map(int size, distx::Timeout deadline, const Body& body) {
  const Map map;
  return test::each(size, [&](int rank) {
    AnyConnector connector = distx::KeyValueConnector(map, "group/", rank, size, deadline);
    body(connector);
  });
}
/// Threads in one process that is over TCP.
Messages run_nested(int size, distx::Timeout deadline, const Body& body) {
  Messages messages;
  (void)run_over_tcp(1, deadline, [&](AnyConnector& outer) {
    messages = each_spawned(size, distx::threads(size, deadline) * outer, body);
  });
  return messages;
}

constexpr Kind kinds[] = {{"self", run_alone, 1},
                          {"threads", run_threads},
                          {"folder", run_in_folder},
                          {"TCP", run_over_tcp},
                          {"store", run_by_store},
                          {"threads over TCP", run_nested},
                          {"keys and values", run_by_map, 7, false}};

/// Runs the body with every connector at 1, 2, 3, 4 and 7 ranks, from `least` on, and checks that no rank throws.
void on_every_connector(const Body& body, bool failures = false) {
  for (const auto& kind : kinds)
    for (const int size : {1, 2, 3, 4, 7}) {
      if (size > kind.most || (failures && !kind.notices_failures)) continue;
      CAPTURE(kind.name);
      CAPTURE(size);
      CHECK(kind.run(size, seconds(60), body) == Messages(static_cast<std::size_t>(size)));
    }
}

void expect_in(const std::string& text, const std::string& part) {
  expect(text.find(part) != std::string::npos, "'" + text + "' does not contain '" + part + "'");
}

TEST_CASE("every connector: ranks are distinct, and all are on this host") {
  on_every_connector([](AnyConnector& connector) {
    const int rank = connector.rank(), size = connector.size();
    expect(rank >= 0 && rank < size, "the rank");
    expect(connector.local_rank() == rank && connector.local_size() == size, "the ranks of this host");
    expect(connector.root_rank() == 0, "the root");
    const auto ranks = distx::all_gather_values(connector, rank);
    for (int r = 0; r < size; ++r) expect(ranks[static_cast<std::size_t>(r)] == r, "the ranks' numbers");
  });
}

TEST_CASE("every connector: barrier returns on no rank before every rank has entered it") {
  for (const auto& kind : kinds)
    for (const int size : {1, 2, 3, 4, 7}) {
      if (size > kind.most) continue;
      std::atomic<int> entered{0};
      CHECK_MESSAGE(kind.run(size, seconds(60),
                             [&](AnyConnector& connector) {
                               for (int round = 1; round <= 10; ++round) {
                                 ++entered;
                                 connector.barrier();
                                 expect(entered >= round * size, "a rank was not there");
                                 connector.barrier();
                               }
                             }) == Messages(static_cast<std::size_t>(size)),
                    kind.name);
    }
}

TEST_CASE("every connector: broadcast from every root, all_gather, with no bytes, a few and a megabyte") {
  for (const std::size_t count : {std::size_t{0}, std::size_t{5}, std::size_t{1} << 20})
    on_every_connector([&](AnyConnector& connector) {
      const auto block_of = [&](int rank) { return std::vector<std::byte>(count, std::byte(rank + 1)); };
      const int last = connector.size() - 1;
      for (int root = 0; root <= last; ++root) {
        if (count > 5 && root > 0 && root < last) continue;
        auto block = block_of(connector.rank());
        connector.broadcast(block, root);
        expect(block == block_of(root), "broadcast");
      }
      const auto mine = block_of(connector.rank());
      std::vector<std::byte> all(count * static_cast<std::size_t>(connector.size()));
      connector.all_gather(mine, all);
      for (int rank = 0; rank <= last; ++rank) {
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(count) * rank;
        expect(std::vector<std::byte>(begin, begin + static_cast<std::ptrdiff_t>(count)) == block_of(rank),
               "all_gather");
      }
    });
}

TEST_CASE("every connector: an invalid root or size throws InvalidArgument on the rank that passes it") {
  on_every_connector([](AnyConnector& connector) {
    std::byte bytes[64]{};
    const int size = connector.size();
    expect_in(error_of<distx::InvalidArgument>([&] { connector.broadcast({}, size); }),
              "invalid root " + std::to_string(size) + ": must be in [0, " + std::to_string(size) + ")");
    expect_in(error_of<distx::InvalidArgument>([&] { connector.broadcast({}, -1); }), "invalid root -1");
    if (size > 1 && connector.rank() >= 0) connector.barrier();
    const std::size_t wrong = static_cast<std::size_t>(size) + 1;
    if (size == 1)
      expect_in(error_of<distx::InvalidArgument>([&] { connector.all_gather({bytes, 1}, {bytes, wrong}); }), "2 bytes");
  });
}

TEST_CASE("every connector: a rank that does not enter a call makes it time out on the others") {
  constexpr int sizes[] = {2, 3, 4, 7};
  for (const auto& kind : kinds) {
    if (kind.most == 1) continue;
    CAPTURE(kind.name);
    // All sizes at a time, since they wait. The ranks may take a while to join, under a sanitizer.
    const auto wrong = test::each(4, [&](int index) {
      const int size = sizes[index];
      std::atomic<int> timed_out{0};
      const auto messages = kind.run(size, milliseconds(1500), [&](AnyConnector& connector) {
        connector.barrier();
        if (connector.rank() == size - 1) {
          distx::detail::wait_until(seconds(30), [&] { return timed_out == size - 1; }, [] { return false; });
          return;
        }
        const auto error = error_of<distx::TimeoutError>([&] { connector.barrier(); });
        ++timed_out;
        expect_in(error, "timed out after 1.5 s: ");
        expect_in(error, " did not enter this call");
      });
      for (const auto& message : messages) expect(message.empty(), message);
    });
    CHECK(wrong == Messages(4));
  }
}

TEST_CASE("every connector: a failure that one rank publishes is polled on every rank, the first of several stays") {
  on_every_connector(
      [](AnyConnector& connector) {
        const auto channel = connector.failure_channel();
        expect(channel != nullptr, "there is no channel");
        expect(!channel->poll(1), "nothing was published");
        connector.barrier();
        if (connector.rank() == connector.size() - 1) channel->publish(1, "the reason");
        expect(test::wait_for(*channel, 1) == "the reason", "the reason");
        connector.barrier();
        channel->publish(1, "too late");
        connector.barrier();
        expect(channel->poll(1) == "the reason", "the first reason stays");
        expect(!channel->poll(2), "another identity");
        connector.barrier();
      },
      true);
}

TEST_CASE("every connector: a rank that throws ends the others' calls, and is reported under every identity") {
  for (const auto& kind : kinds)
    for (const int size : {2, 3, 4, 7}) {
      if (size > kind.most || !kind.notices_failures) continue;
      for (const int failing : {0, size - 1}) {
        CAPTURE(kind.name);
        CAPTURE(failing);
        const auto messages = kind.run(size, seconds(60), [&](AnyConnector& connector) {
          connector.barrier();
          if (connector.rank() == failing) throw std::runtime_error("as it should");
          expect_in(test::wait_for(*connector.failure_channel(), 5), "rank " + std::to_string(failing) + " of ");
          const auto error = error_of<distx::RevokedError>([&] { connector.barrier(); });
          expect_in(error, "rank " + std::to_string(failing) + " of " + std::to_string(size));
        });
        for (int rank = 0; rank < size; ++rank)
          CHECK(messages[static_cast<std::size_t>(rank)] == (rank == failing ? "as it should" : ""));
      }
    }
}

TEST_CASE(
    "a connector of keys and values names the rank that passes another number of bytes, and a rank out of range") {
  const auto messages = run_by_map(3, seconds(60), [](AnyConnector& connector) {
    const std::vector<std::byte> sent(connector.rank() == 2 ? 5 : 4);
    std::vector<std::byte> received(3 * sent.size());
    expect_in(error_of<distx::MismatchError>([&] { connector.all_gather(sent, received); }),
              connector.rank() == 2 ? "rank 0 passes 4 bytes, this rank 5" : "rank 2 passes 5 bytes, this rank 4");
    std::vector<std::byte> bytes(connector.rank() == 2 ? 5 : 4);
    const auto broadcast = [&] { connector.broadcast(bytes, 2); };
    if (connector.rank() == 2) return broadcast();
    expect_in(error_of<distx::MismatchError>(broadcast), "rank 2 passes 5 bytes, this rank 4");
  });
  CHECK(messages == Messages(3));
  CHECK(error_of<distx::ConnectError>([] { distx::KeyValueConnector(Map(), "", 2, 2); }).find("invalid rank 2") !=
        std::string::npos);
}

}  // namespace
