// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <atomic>

#include "connect/connectors.hpp"
#include "connect/fake_store.hpp"
#include "distx/connect/tcp/detail/start_by_store.hpp"
#include "words.hpp"

namespace {

namespace tcp = distx::detail::tcp;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::each;
using test::expect;
using test::FakeStore;
using test::Messages;

distx::TcpConnector connector_by(int store_port, int rank, int size, const std::string& prefix = "distx/job/0/",
                                 distx::Timeout deadline = seconds(60)) {
  return tcp::start_by_store({"127.0.0.1", store_port}, prefix, true, {rank, size, deadline, {}});
}
TEST_CASE("StoreClient sets, gets and waits") {
  FakeStore store;
  tcp::StoreClient client, other;
  const auto end = distx::Deadline(seconds(20)).end();
  REQUIRE(client.open({"127.0.0.1", store.port()}, end));
  REQUIRE(other.open({"127.0.0.1", store.port()}, end));
  std::jthread setter([&] { CHECK(other.set("key", std::string("a\0b", 3), end)); });
  CHECK(client.get("key", end) == std::string("a\0b", 3));
  CHECK(client.get("key", end) == std::string("a\0b", 3));
  CHECK(!client.get("never", distx::Deadline(milliseconds(50)).end()));
  CHECK(!client.is_open());
  CHECK(client.problem() == "rank 0 has not set its address in it");
}

TEST_CASE("ranks meet in the store of torchrun's agent, and after a restart again") {
  FakeStore store;
  for (const int size : {1, 2, 3, 4, 7})
    for (const char* prefix : {"distx/job/0/", "distx/job/1/"})
      CHECK(each(size, [&](int rank) {
              auto connector = connector_by(store.port(), rank, size, prefix);
              expect(connector.rank() == rank && connector.size() == size && connector.local_size() == size, "ranks");
              const auto ranks = distx::all_gather_values(connector, rank);
              for (int r = 0; r < size; ++r) expect(ranks[static_cast<std::size_t>(r)] == r, "all_gather");
            }) == Messages(static_cast<std::size_t>(size)));
  for (const auto& [key, value] : store.values()) CHECK(key.starts_with("distx/job/"));
}

TEST_CASE("an address that an earlier start left in the store has no effect") {
  FakeStore store;
  const auto program = test::listen_on_loopback();  // another one took the port
  for (const int port : {test::free_port(), program.endpoint().port}) {
    store.set("distx/job/0/rank 0", "127.0.0.1:" + std::to_string(port) + " old");
    std::atomic<bool> tried{false};
    std::jthread talkative([&] {
      if (port != program.endpoint().port) return;
      auto accepted = test::accept(program);
      (void)test::send(accepted, std::string(100, 'x'));
      tried = true;
    });
    CHECK(each(2, [&](int rank) {
            if (rank == 0 && port == program.endpoint().port)
              distx::detail::wait_until(seconds(20), [&] { return tried.load(); }, [] { return false; });
            auto connector = connector_by(store.port(), rank, 2);
            connector.barrier();
          }) == Messages(2));
  }
}

TEST_CASE("a store that is not there, or in which rank 0 does not appear, is named at the deadline") {
  const int port = test::free_port();
  const auto error_of = [](int store, int rank) -> std::string {
    try {
      (void)connector_by(store, rank, 2, "distx/none/0/", milliseconds(200));
    } catch (const distx::TimeoutError& error) {
      return error.what();
    }
    return "no error";
  };
  CHECK(error_of(port, 1) ==
        "distx: connect on rank 1 of 2 (tcp): timed out after 0.2 s: cannot reach torchrun's "
        "store at 127.0.0.1:" +
            std::to_string(port) + " (Connection refused)");
  FakeStore store;
  CHECK(error_of(store.port(), 1).find("cannot join rank 0 (rank 0 has not published its address)") !=
        std::string::npos);
  CHECK(error_of(store.port(), 0).find("rank 1 of 2 did not join") != std::string::npos);
}

}  // namespace
