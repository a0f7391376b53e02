// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/connect/file.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <fstream>

#include "connect/in_folder.hpp"

namespace {

using distx::FileConnector;
using test::each;
using test::each_in;
using test::NewFolder;
using Words = std::vector<std::string>;
using std::chrono::milliseconds;
using std::chrono::seconds;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
void expect(bool right, const char* what) {
  if (!right) throw std::runtime_error(what);
}

void check_laws(FileConnector& connector) {
  const int rank = connector.rank(), size = connector.size();
  expect(connector.local_rank() == rank && connector.local_size() == size, "local");
  expect(connector.root_rank() == 0, "root");
  connector.barrier();
  const auto ranks = distx::all_gather_values(connector, rank);
  for (int r = 0; r < size; ++r) expect(ranks[static_cast<std::size_t>(r)] == r, "all_gather");
  for (int root = 0; root < size; ++root)
    expect(distx::broadcast_value(connector, rank * 10 + 3, root) == root * 10 + 3, "broadcast");
  connector.all_gather({}, {});
  connector.broadcast({}, 0);
  std::vector<std::byte> large(100000, std::byte(rank));
  connector.broadcast(large, size - 1);
  expect(large == std::vector<std::byte>(100000, std::byte(size - 1)), "a large broadcast");
}

/// A world as an earlier run leaves it that was killed: after it had met, or while it was meeting.
void leave_a_wreck(const std::filesystem::path& folder, int size, bool met) {
  const distx::file::Folder outer(folder);
  const std::string word = distx::file::random_name();
  std::filesystem::create_directories(folder / ("run-" + word));
  const distx::file::Folder inner(folder / ("run-" + word));
  distx::file::Process gone = distx::file::this_process();
  gone.began -= 1;  // another process with this one's number, which was there before
  std::ostringstream hello;
  hello << word << ' ' << size << ' ' << gone << '\n';
  for (int rank = 0; rank < size; ++rank) inner.put("hello-" + std::to_string(rank), hello.str());
  outer.put("run", hello.str());
  if (!met) return;
  std::ostringstream together;
  together << 0 << ' ' << size << '\n';
  for (int rank = 0; rank < size; ++rank) together << hello.str();
  inner.put("together", together.str());
  for (int rank = 0; rank < size; ++rank) inner.put("call-1-" + std::to_string(rank), "barrier\n");
  inner.put("failure", "died 0 in an earlier run");
}

bool has_come(const std::filesystem::path& folder, int rank) {
  for (const auto& run : std::filesystem::directory_iterator(folder))
    if (std::filesystem::exists(run.path() / ("hello-" + std::to_string(rank)))) return true;
  return false;
}

TEST_CASE("ranks that meet in a folder keep a connector's laws, and leave nothing there") {
  for (const int size : {1, 2, 3, 4, 7}) {
    const NewFolder folder;
    for (const char* run : {"first", "second"})
      CHECK_MESSAGE(each_in(folder.path(), size,
                            [](FileConnector& connector) {
                              for (int round = 0; round < 3; ++round) check_laws(connector);
                            }) == Words(static_cast<std::size_t>(size)),
                    run);
    CHECK(folder.empty());
  }
}

TEST_CASE("rank 0 makes the folder where there is none, whoever comes first, and takes it away") {
  const NewFolder folder;
  const auto inner = folder.path() / "not" / "there";
  for (const int late : {0, 1}) {
    CHECK(each(2, [&](int rank) {
            if (rank == late) std::this_thread::sleep_for(milliseconds(30));
            FileConnector connector(inner, rank, 2, {.deadline = seconds(60)});
            check_laws(connector);
          }) == Words(2));
    CHECK(!std::filesystem::exists(inner));
  }
}

TEST_CASE("few files are in the folder at any time") {
  const NewFolder folder;
  CHECK(each_in(folder.path(), 3, [&](FileConnector& connector) {
          for (int round = 0; round < 50; ++round) connector.barrier();
          std::ptrdiff_t files = 0;
          for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
            files += entry.exists();
          expect(files < 20, "files are piling up");
          connector.barrier();
        }) == Words(3));
}

TEST_CASE("a barrier lets no rank go before the last one has come") {
  const NewFolder folder;
  std::atomic<int> came{0};
  CHECK(each_in(folder.path(), 4, [&](FileConnector& connector) {
          for (int round = 1; round <= 20; ++round) {
            ++came;
            connector.barrier();
            expect(came >= 4 * round, "a rank went too early");
            connector.barrier();
          }
        }) == Words(4));
}

TEST_CASE("calls that differ are told on every rank, and the ranks stay in step") {
  const NewFolder folder;
  std::atomic<int> told{0};
  const auto mismatch = [&](auto&& call, const std::string& words) {
    try {
      call();
    } catch (const distx::MismatchError& error) {
      if (contains(error.what(), words)) ++told;
    }
  };
  CHECK(each_in(folder.path(), 3, [&](FileConnector& connector) {
          std::byte bytes[4]{}, received[12]{};
          const std::size_t mine = connector.rank() == 2 ? 3 : 4;
          mismatch([&] { connector.all_gather({bytes, mine}, {received, 3 * mine}); },
                   "rank 0 calls all_gather of 4 bytes, rank 2 all_gather of 3 bytes");
          mismatch([&] { connector.broadcast({bytes, mine}, 2); },
                   "rank 0 calls broadcast from 2 of 4 bytes, rank 2 broadcast from 2 of 3 bytes");
          mismatch([&] { connector.broadcast({bytes, 4}, connector.rank() == 1 ? 1 : 0); },
                   "rank 0 calls broadcast from 0 of 4 bytes, rank 1 broadcast from 1 of 4 bytes");
          mismatch([&] { connector.rank() == 1 ? connector.barrier() : connector.broadcast({bytes, 4}, 0); },
                   "rank 0 calls broadcast from 0 of 4 bytes, rank 1 barrier");
          mismatch([&] { connector.broadcast({}, 3); }, "root 3 is no rank: ranks are 0 to 2");
          mismatch([&] { connector.all_gather({bytes, 2}, {received, 5}); },
                   "receive has 5 bytes, 3 ranks send 2 each");
          check_laws(connector);
        }) == Words(3));
  CHECK(told == 18);
}

TEST_CASE("ranks that do not come to the folder are named") {
  const NewFolder folder;
  const auto words = each(
      2, [&](int rank) { FileConnector connector(folder.path(), rank, 4, {.deadline = seconds(rank == 0 ? 1 : 60)}); });
  const std::string named = "after 1 s ranks 2 and 3 of 4 have not come to " + folder.path().string();
  CHECK(words[0] == "distx: connect on rank 0 of 4 (file): " + named);
  CHECK(contains(words[1], named));  // at once, not after its own deadline
  CHECK(folder.empty());

  CHECK_THROWS_AS(FileConnector(folder.path(), 0, 2, {.deadline = milliseconds(10)}), distx::TimeoutError);
  CHECK_THROWS_WITH_AS(
      FileConnector(folder.path(), 1, 2, {.deadline = milliseconds(10)}),
      ("distx: connect on rank 1 of 2 (file): after 0.01 s rank 0 has not come to " + folder.path().string()).c_str(),
      distx::TimeoutError);
  CHECK(folder.empty());
}

TEST_CASE("a rank that does not come to a call is named, and the connector is then of no more use") {
  const NewFolder folder;
  std::atomic<int> timed_out{0};
  const auto words = each_in(
      folder.path(), 3,
      [&](FileConnector& connector) {
        connector.barrier();
        std::string told;
        if (connector.rank() != 1) {
          try {
            connector.barrier();
          } catch (const distx::TimeoutError& error) {
            told = error.what();
          }
          ++timed_out;
          try {
            connector.barrier();
          } catch (const distx::RevokedError& error) {
            expect(contains(error.what(), "an earlier call of this connector has failed"), error.what());
          }
        }
        // Nobody leaves before: that would be told first.
        distx::detail::wait_until(seconds(20), [&] { return timed_out == 2; }, [] { return false; });
        throw std::runtime_error(told);
      },
      seconds(1));
  for (const int rank : {0, 2})
    CHECK(words[static_cast<std::size_t>(rank)] == "distx: barrier on rank " + std::to_string(rank) +
                                                       " of 3 (file): after 1 s rank 1 of 3 has not made this call");
}

TEST_CASE("a rank that has left ends the waits for it at once") {
  const NewFolder folder;
  const auto words = each_in(folder.path(), 3, [&](FileConnector& connector) {
    connector.barrier();
    if (connector.rank() == 2) return;
    try {
      connector.barrier();
    } catch (const distx::RankFailure& failure) {
      expect(failure.failed_rank() == 2, "the failed rank");
      expect(contains(failure.what(), "rank 2 of 3 has left, and will not make this call"), failure.what());
    }
  });
  CHECK(words == Words(3));
  CHECK(folder.empty());
}

TEST_CASE("a rank that unwinds ends all waits, and is heard under every identity") {
  const NewFolder folder;
  std::atomic<int> told{0};
  const auto words = each_in(folder.path(), 3, [&](FileConnector& connector) {
    connector.barrier();
    if (connector.rank() == 1) {
      const auto moved = std::move(connector);
      throw std::out_of_range("the fifth wheel");
    }
    try {
      connector.barrier();
    } catch (const distx::RevokedError& error) {
      if (contains(error.what(), "rank 1 of 3 let the connector go while unwinding")) ++told;
    }
    if (contains(connector.failure_channel()->poll(12).value_or(""), "rank 1 of 3 let the connector go")) ++told;
  });
  CHECK(words[1] == "the fifth wheel");
  CHECK(told == 4);
  CHECK(folder.empty());
}

TEST_CASE("what an earlier run has left is never taken for this run's") {
  for (const int size : {2, 3}) {
    for (const int late : {0, 1}) {
      const NewFolder folder;
      leave_a_wreck(folder.path(), size, true);
      leave_a_wreck(folder.path(), 4, true);
      leave_a_wreck(folder.path(), size, false);
      CHECK(each(size, [&](int rank) {
              if (rank == late) std::this_thread::sleep_for(milliseconds(30));
              FileConnector connector(folder.path(), rank, size, {.deadline = seconds(60)});
              check_laws(connector);
            }) == Words(static_cast<std::size_t>(size)));
      CHECK(!std::filesystem::exists(folder.path() / "run"));
    }
  }
}

TEST_CASE("what an earlier run's rank 0 offers from another machine is left for the new one's") {
  const NewFolder folder;
  const distx::file::Folder outer(folder.path());
  auto elsewhere = distx::file::this_process();
  elsewhere.host = "another-machine";
  std::ostringstream hello;
  hello << "old 2 " << elsewhere << '\n';
  std::filesystem::create_directories(folder.path() / "run-old");
  const distx::file::Folder old(folder.path() / "run-old");
  old.put("hello-0", hello.str());
  old.put("together", "0 2\n" + hello.str() + hello.str());
  outer.put("run", hello.str());
  CHECK(each(2, [&](int rank) {
          if (rank == 0) std::this_thread::sleep_for(milliseconds(50));  // rank 1 answers the old one first
          FileConnector connector(folder.path(), rank, 2, {.deadline = seconds(60)});
          check_laws(connector);
        }) == Words(2));
}

TEST_CASE("ranks of an earlier run that cannot be looked at, all of them, are no twins of this run's") {
  const NewFolder folder;
  const distx::file::Folder outer(folder.path());
  auto elsewhere = distx::file::this_process();
  elsewhere.boot = "another-start";
  std::ostringstream hello;
  hello << "old 2 " << elsewhere << '\n';
  std::filesystem::create_directories(folder.path() / "run-old");
  const distx::file::Folder old(folder.path() / "run-old");
  for (const char* rank : {"hello-0", "hello-1"}) old.put(rank, hello.str());
  outer.put("run", hello.str());
  CHECK(each(2, [&](int rank) {
          if (rank == 0)  // rank 1 finds the old one first
            distx::detail::wait_until(seconds(20), [&] { return old.has("trouble"); }, [] { return false; });
          FileConnector connector(folder.path(), rank, 2, {.deadline = seconds(20)});
          check_laws(connector);
        }) == Words(2));
}

TEST_CASE("ranks that disagree about their number are told so, all of them") {
  for (const int sizes_of_1 : {2, 4}) {
    const NewFolder folder;
    const auto words = each(3, [&](int rank) {
      // Rank 0 makes an end of it as soon as rank 1 is there: who came later would wait for another rank 0.
      if (rank == 1)
        distx::detail::wait_until(seconds(20), [&] { return has_come(folder.path(), 2); }, [] { return false; });
      FileConnector connector(folder.path(), rank, rank == 1 ? sizes_of_1 : 3, {.deadline = seconds(20)});
    });
    const auto told = "rank 1 is one of " + std::to_string(sizes_of_1) +
                      " ranks, rank 0 one of 3: all need the same number (DISTX_SIZE)";
    CHECK(words[0] == "distx: connect on rank 0 of 3 (file): " + told);
    for (const auto& said : words) CHECK(contains(said, told));
  }
  const NewFolder folder;
  const auto words = each(2, [&](int rank) {
    FileConnector connector(folder.path(), rank * 5, rank == 0 ? 3 : 6, {.deadline = seconds(20)});
  });
  for (const auto& said : words) CHECK(contains(said, "rank 5 is one of 6 ranks, rank 0 one of 3"));
  CHECK(folder.empty());
}

TEST_CASE("two processes of one rank are told so") {
  const NewFolder folder;
  std::atomic<int> refused{0};
  const auto words = each(3, [&](int thread) {
    try {
      FileConnector connector(folder.path(), thread == 0 ? 0 : 1, 3, {.deadline = seconds(20)});
    } catch (const distx::ConnectError& error) {
      if (contains(error.what(), "rank 1 is there twice (process ")) ++refused;
    }
  });
  CHECK(words == Words(3));
  CHECK(refused == 3);
}

TEST_CASE("a second rank 0 is told to the first") {
  const NewFolder folder;
  std::atomic<int> refused{0};
  (void)each(2, [&](int) {
    try {
      FileConnector connector(folder.path(), 0, 2, {.deadline = seconds(2)});
    } catch (const distx::ConnectError& error) {
      if (contains(error.what(), "another rank 0 (process ")) ++refused;
    } catch (const distx::TimeoutError&) {
    }
  });
  CHECK(refused == 1);
}

TEST_CASE("a folder that cannot be made or written is said") {
  const NewFolder folder;
  std::ofstream(folder.path() / "file") << "x";
  CHECK_THROWS_AS(FileConnector(folder.path() / "file", 0, 2, {.deadline = milliseconds(10)}), distx::ConnectError);
  CHECK_THROWS_WITH_AS(FileConnector(folder.path(), 4, 4),
                       "distx: connect (file): there is no rank 4 of 4: ranks are 0 to one less than their number "
                       "(DISTX_RANK, DISTX_SIZE)",
                       distx::ConnectError);
  CHECK_THROWS_AS(FileConnector(folder.path(), -1, 4), distx::ConnectError);
}

TEST_CASE("a folder that is taken away ends the calls in an error") {
  const NewFolder folder;
  const auto words = each_in(
      folder.path(), 2,
      [&](FileConnector& connector) {
        try {
          connector.barrier();
          std::error_code none;
          std::filesystem::remove_all(folder.path(), none);
          connector.barrier();
        } catch (const distx::Error&) {
          return;
        }
        throw std::runtime_error("nothing was thrown");
      },
      seconds(1));
  CHECK(words == Words(2));
}

TEST_CASE("ranks that meet in a folder hear what one of them tells, from any thread") {
  for (const int size : {1, 2, 4}) {
    const NewFolder folder;
    CHECK(each_in(folder.path(), size, [&](FileConnector& connector) {
            const auto notices = connector.failure_channel();
            expect(!notices->poll(5), "too early");
            connector.barrier();
            std::atomic<bool> right{false};
            std::jthread watcher([&] {
              distx::detail::wait_until(
                  seconds(20), [&] { return notices->poll(5).has_value(); }, [] { return false; });
              right = notices->poll(5) == "told";
            });
            if (connector.rank() == size - 1) notices->publish(5, "told");
            watcher.join();
            expect(right, "not heard");
            connector.barrier();
            notices->publish(5, "too late");
            connector.barrier();
            expect(notices->poll(5) == "told" && !notices->poll(6), "the first stays");
          }) == Words(static_cast<std::size_t>(size)));
    CHECK(folder.empty());
  }
}

TEST_CASE("of reasons told at once one stays, the same for all") {
  const NewFolder folder;
  CHECK(each_in(folder.path(), 4, [&](FileConnector& connector) {
          for (std::uint64_t identity = 0; identity < 10; ++identity) {
            connector.failure_channel()->publish(identity, std::string(1, static_cast<char>('a' + connector.rank())));
            connector.barrier();
            const auto all = distx::all_gather_values(connector, (*connector.failure_channel()->poll(identity))[0]);
            expect(all == std::vector<char>(4, all[0]), "the ranks have heard different reasons");
          }
        }) == Words(4));
}

TEST_CASE("what is written is found again, and what is there first stays") {
  const NewFolder folder;
  const distx::file::Folder files(folder.path());
  CHECK(!files.read("a"));
  files.put("a", "one");
  files.put("a", std::string("two\0three", 9));
  CHECK(files.read("a") == std::string("two\0three", 9));
  CHECK(files.put_first("b", "first"));
  CHECK(!files.put_first("b", "second"));
  CHECK(files.read("b") == "first");
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), std::filesystem::directory_iterator()) == 2);
}

TEST_CASE("a process is known by its number and its start") {
  const auto self = distx::file::this_process();
  REQUIRE(self.id > 0);
  REQUIRE(self.began > 0);
  CHECK(!distx::file::has_ended(self, self));
  auto other = self;
  other.began += 1;
  CHECK(distx::file::has_ended(other, self));
  other.host = "another-machine";
  CHECK(!distx::file::has_ended(other, self));  // nothing is known of it
  std::stringstream text;
  text << self;
  distx::file::Process read;
  text >> read;
  CHECK(read.shares_machine_with(self));
  CHECK((read.id == self.id && read.began == self.began && read.space == self.space));
  const auto state = distx::detail::process_state_from("12 (a (b) c\nd) R 1 1 1 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 777 9");
  CHECK((state.state == 'R' && state.began == 777));
}

}  // namespace
