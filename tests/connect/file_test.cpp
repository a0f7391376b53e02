// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "connect/connectors.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <atomic>
#include <fstream>

#include "connect/in_folder.hpp"
#include "words.hpp"

namespace {

namespace control = distx::detail::control;
namespace file = distx::detail::file;
using distx::FileConnector;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::contains;
using test::each;
using test::each_in;
using test::expect;
using test::Messages;
using test::NewFolder;

void check_invariants(FileConnector& connector) {
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

/// Opens a folder, which is made if there is none.
file::Folder open_folder(const std::filesystem::path& path) {
  file::Folder::make(path);
  return std::move(*file::Folder::open(path));
}

std::string hello_of(const std::string& word, int size, const file::Process& process) {
  return word + ' ' + std::to_string(size) + ' ' + process.text() + '\n';
}

/// The files of an earlier job that was killed: after its ranks had joined, or before.
void leave_abandoned_files(const std::filesystem::path& path, int size, bool joined) {
  const auto outer = open_folder(path);
  const std::string word = distx::detail::posix::random_name(32);
  const auto inner = outer.make_inside("run-" + word);
  file::Process gone = file::this_process();
  gone.began -= 1;  // another process of this one's id, which ran before
  const auto hello = hello_of(word, size, gone);
  for (int rank = 0; rank < size; ++rank) inner.put("hello-" + std::to_string(rank), hello);
  outer.put("run", hello);
  if (!joined) return;
  file::Generation members;
  for (int rank = 0; rank < size; ++rank) members.push_back({word, gone});
  inner.put(file::members_file, file::text_of(members));
  for (int rank = 0; rank < size; ++rank) inner.put("call-1-" + std::to_string(rank), "barrier\n");
  const control::Frame failure{{.kind = control::FrameKind::ended, .end = control::RankEnd::exited, .rank = 0},
                               "in an earlier job"};
  inner.put("failure", text_of(failure));
}

bool has_joined(const std::filesystem::path& folder, int rank) {
  for (const auto& run : std::filesystem::directory_iterator(folder))
    if (std::filesystem::exists(run.path() / ("hello-" + std::to_string(rank)))) return true;
  return false;
}

TEST_CASE("ranks in a folder satisfy the Connector contract and leave no files") {
  for (const int size : {1, 2, 3, 4, 7}) {
    const NewFolder folder;
    for (const char* run : {"first", "second"})
      CHECK_MESSAGE(each_in(folder.path(), size,
                            [](FileConnector& connector) {
                              for (int round = 0; round < 3; ++round) check_invariants(connector);
                            }) == Messages(static_cast<std::size_t>(size)),
                    run);
    CHECK(folder.empty());
  }
}

TEST_CASE("rank 0 makes a missing folder, whichever rank is first, and the last rank removes it") {
  const NewFolder folder;
  const auto inner = folder.path() / "not" / "there";
  for (const int late : {0, 1}) {
    CHECK(each(2, [&](int rank) {
            if (rank == late) std::this_thread::sleep_for(milliseconds(30));
            FileConnector connector(inner, rank, 2, {.deadline = seconds(60)});
            check_invariants(connector);
          }) == Messages(2));
    CHECK(!std::filesystem::exists(inner));
  }
}

TEST_CASE("the number of files in the folder stays bounded") {
  const NewFolder folder;
  CHECK(each_in(folder.path(), 3, [&](FileConnector& connector) {
          const auto channel = connector.failure_channel();
          std::jthread polls([&](const std::stop_token& stop) {  // and may complete this rank's calls
            while (!stop.stop_requested()) (void)channel->poll(1);
          });
          for (int round = 0; round < 50; ++round) {
            std::this_thread::sleep_for(milliseconds(connector.rank()));
            connector.barrier();
          }
          polls = {};
          std::ptrdiff_t files = 0;
          for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
            files += entry.exists();
          expect(files < 20, "files are piling up");
          connector.barrier();
        }) == Messages(3));
}

TEST_CASE("barrier returns on no rank before every rank has entered it") {
  const NewFolder folder;
  std::atomic<int> entered{0};
  CHECK(each_in(folder.path(), 4, [&](FileConnector& connector) {
          for (int round = 1; round <= 20; ++round) {
            ++entered;
            connector.barrier();
            expect(entered >= 4 * round, "a rank returned too early");
            connector.barrier();
          }
        }) == Messages(4));
}

TEST_CASE("calls that differ throw MismatchError on every rank, and the ranks stay in step") {
  const NewFolder folder;
  std::atomic<int> thrown{0};
  const auto mismatch = [&](auto&& call, const std::string& messages, bool local = false) {
    try {
      call();
    } catch (const distx::MismatchError& error) {
      if (contains(error.what(), messages) && !local) ++thrown;
    } catch (const distx::InvalidArgument& error) {
      if (contains(error.what(), messages) && local) ++thrown;
    }
  };
  CHECK(each_in(folder.path(), 3, [&](FileConnector& connector) {
          std::byte bytes[4]{}, received[12]{};
          const std::size_t mine = connector.rank() == 2 ? 3 : 4;
          mismatch([&] { connector.all_gather({bytes, mine}, {received, 3 * mine}); },
                   "rank 0 calls all_gather of 4 bytes, rank 2 all_gather of 3 bytes");
          mismatch([&] { connector.broadcast({bytes, mine}, 2); },
                   "rank 0 calls broadcast of 4 bytes from rank 2, rank 2 broadcast of 3 bytes from rank 2");
          mismatch([&] { connector.broadcast({bytes, 4}, connector.rank() == 1 ? 1 : 0); },
                   "rank 0 calls broadcast of 4 bytes from rank 0, rank 1 broadcast of 4 bytes from rank 1");
          mismatch([&] { connector.rank() == 1 ? connector.barrier() : connector.broadcast({bytes, 4}, 0); },
                   "rank 0 calls broadcast of 4 bytes from rank 0, rank 1 barrier");
          mismatch([&] { connector.broadcast({}, 3); }, "invalid root 3", true);
          mismatch([&] { connector.all_gather({bytes, 2}, {received, 5}); }, "receive has 5 bytes", true);
          check_invariants(connector);
        }) == Messages(3));
  CHECK(thrown == 18);
}

TEST_CASE("a rendezvous that times out names the missing ranks on every rank") {
  const NewFolder folder;
  const auto messages = each(
      2, [&](int rank) { FileConnector connector(folder.path(), rank, 4, {.deadline = seconds(rank == 0 ? 1 : 60)}); });
  const std::string named = "timed out after 1 s: ranks 2 and 3 of 4 did not join in '" + folder.path().string() + "'";
  for (const int rank : {0, 1})  // rank 1 at once, not after its own deadline
    CHECK(messages[static_cast<std::size_t>(rank)] ==
          "distx: connect on rank " + std::to_string(rank) + " of 4 (file): " + named);
  CHECK(contains(messages[1], named));  // at once, not after its own deadline
  CHECK(folder.empty());

  CHECK_THROWS_AS(FileConnector(folder.path(), 0, 2, {.deadline = milliseconds(10)}), distx::TimeoutError);
  CHECK_THROWS_WITH_AS(FileConnector(folder.path(), 1, 2, {.deadline = milliseconds(10)}),
                       ("distx: connect on rank 1 of 2 (file): timed out after 0.01 s: rank 0 of 2 did not join in '" +
                        folder.path().string() + "'")
                           .c_str(),
                       distx::TimeoutError);
  CHECK(folder.empty());
}

TEST_CASE("a call that times out names the missing rank, and later calls of the connector throw") {
  const NewFolder folder;
  std::atomic<int> timed_out{0};
  const auto messages = each_in(
      folder.path(), 3,
      [&](FileConnector& connector) {
        connector.barrier();
        std::string thrown;
        if (connector.rank() != 1) {
          try {
            connector.barrier();
          } catch (const distx::TimeoutError& error) {
            thrown = error.what();
          }
          ++timed_out;
          try {
            connector.barrier();
          } catch (const distx::RevokedError& error) {
            expect(contains(error.what(), "an earlier call of this connector failed"), error.what());
          }
        }
        // No rank leaves before, which would be reported instead.
        distx::detail::wait_until(seconds(20), [&] { return timed_out == 2; }, [] { return false; });
        throw std::runtime_error(thrown);
      },
      seconds(1));
  for (const int rank : {0, 2})
    CHECK(messages[static_cast<std::size_t>(rank)] ==
          "distx: barrier on rank " + std::to_string(rank) +
              " of 3 (file): timed out after 1 s: rank 1 of 3 did not enter this call");
}

TEST_CASE("a rank that destroyed its connector ends the waits for it at once") {
  const NewFolder folder;
  const auto messages = each_in(folder.path(), 3, [&](FileConnector& connector) {
    connector.barrier();
    if (connector.rank() == 2) return;
    try {
      connector.barrier();
    } catch (const distx::RankFailure& failure) {
      expect(failure.failed_rank() == 2, "the failed rank");
      expect(contains(failure.what(), "rank 2 of 3 destroyed its connector"), failure.what());
    }
  });
  CHECK(messages == Messages(3));
  CHECK(folder.empty());
}

TEST_CASE("a rank that unwinds ends all waits, and is reported under every identity") {
  const NewFolder folder;
  std::atomic<int> thrown{0};
  const auto messages = each_in(folder.path(), 3, [&](FileConnector& connector) {
    connector.barrier();
    if (connector.rank() == 1) {
      const auto moved = std::move(connector);
      throw std::out_of_range("the fifth wheel");
    }
    try {
      connector.barrier();
    } catch (const distx::RevokedError& error) {
      if (contains(error.what(), "rank 1 of 3 destroyed its connector while unwinding")) ++thrown;
    }
    if (contains(connector.failure_channel()->poll(12).value_or(""), "rank 1 of 3 destroyed its connector")) ++thrown;
  });
  CHECK(messages[1] == "the fifth wheel");
  CHECK(thrown == 4);
  CHECK(folder.empty());
}

TEST_CASE("files of an earlier job are never used") {
  for (const int size : {2, 3}) {
    for (const int late : {0, 1}) {
      const NewFolder folder;
      leave_abandoned_files(folder.path(), size, true);
      leave_abandoned_files(folder.path(), 4, true);
      leave_abandoned_files(folder.path(), size, false);
      CHECK(each(size, [&](int rank) {
              if (rank == late) std::this_thread::sleep_for(milliseconds(30));
              FileConnector connector(folder.path(), rank, size, {.deadline = seconds(60)});
              check_invariants(connector);
            }) == Messages(static_cast<std::size_t>(size)));
      CHECK(!std::filesystem::exists(folder.path() / "run"));
    }
  }
}

TEST_CASE("the offer of an earlier job's rank 0 on another host is replaced by the new one's") {
  const NewFolder folder;
  auto elsewhere = file::this_process();
  elsewhere.host = "another-host";
  const auto hello = hello_of("old", 2, elsewhere);
  const auto outer = open_folder(folder.path());
  const auto old = outer.make_inside("run-old");
  old.put("hello-0", hello);
  old.put(file::members_file, file::text_of({{"old", elsewhere}, {"old", elsewhere}}));
  outer.put("run", hello);
  CHECK(each(2, [&](int rank) {
          if (rank == 0) std::this_thread::sleep_for(milliseconds(50));  // rank 1 answers the old one first
          FileConnector connector(folder.path(), rank, 2, {.deadline = seconds(60)});
          check_invariants(connector);
        }) == Messages(2));
}

TEST_CASE("ranks of an earlier job on another host are not taken for a second process of this job's ranks") {
  const NewFolder folder;
  auto elsewhere = file::this_process();
  elsewhere.host = "another-host";
  const auto hello = hello_of("old", 2, elsewhere);
  const auto outer = open_folder(folder.path());
  const auto old = outer.make_inside("run-old");
  for (const char* rank : {"hello-0", "hello-1"}) old.put(rank, hello);
  outer.put("run", hello);
  CHECK(each(2, [&](int rank) {
          if (rank == 0)  // rank 1 finds the old one first
            distx::detail::wait_until(seconds(20), [&] { return old.has("trouble"); }, [] { return false; });
          FileConnector connector(folder.path(), rank, 2, {.deadline = seconds(20)});
          check_invariants(connector);
        }) == Messages(2));
}

TEST_CASE("different sizes throw ConnectError on every rank") {
  for (const int sizes_of_1 : {2, 4}) {
    const NewFolder folder;
    const auto messages = each(3, [&](int rank) {
      // Rank 0 gives up as soon as rank 1 has joined: a later rank would wait for another rank 0.
      if (rank == 1)
        distx::detail::wait_until(seconds(20), [&] { return has_joined(folder.path(), 2); }, [] { return false; });
      FileConnector connector(folder.path(), rank, rank == 1 ? sizes_of_1 : 3, {.deadline = seconds(20)});
    });
    const auto thrown = "rank 1 expects " + std::to_string(sizes_of_1) +
                        " ranks, rank 0 expects 3: start every rank with the same size";
    CHECK(messages[0] == "distx: connect on rank 0 of 3 (file): " + thrown);
    for (const auto& said : messages) CHECK(contains(said, thrown));
  }
  const NewFolder folder;
  const auto messages = each(2, [&](int rank) {
    FileConnector connector(folder.path(), rank * 5, rank == 0 ? 3 : 6, {.deadline = seconds(20)});
  });
  for (const auto& said : messages) CHECK(contains(said, "rank 5 expects 6 ranks, rank 0 expects 3"));
  CHECK(folder.empty());
}

TEST_CASE("two processes of one rank throw ConnectError on every rank") {
  const NewFolder folder;
  std::atomic<int> refused{0};
  const auto messages = each(3, [&](int thread) {
    try {
      FileConnector connector(folder.path(), thread == 0 ? 0 : 1, 3, {.deadline = seconds(20)});
    } catch (const distx::ConnectError& error) {
      if (contains(error.what(), "two processes have rank 1 (pid ")) ++refused;
    }
  });
  CHECK(messages == Messages(3));
  CHECK(refused == 3);
}

TEST_CASE("a second rank 0 throws ConnectError") {
  const NewFolder folder;
  std::atomic<int> refused{0};
  (void)each(2, [&](int) {
    try {
      FileConnector connector(folder.path(), 0, 2, {.deadline = seconds(2)});
    } catch (const distx::ConnectError& error) {
      if (contains(error.what(), "another process with rank 0 (pid ")) ++refused;
    } catch (const distx::TimeoutError&) {
    }
  });
  CHECK(refused == 1);
}

TEST_CASE("invalid ranks and folders throw ConnectError") {
  const NewFolder folder;
  std::ofstream(folder.path() / "file") << "x";
  CHECK_THROWS_AS(FileConnector(folder.path() / "file", 0, 2, {.deadline = milliseconds(10)}), distx::ConnectError);
  CHECK_THROWS_WITH_AS(FileConnector(folder.path(), 4, 4), "distx: connect (file): invalid rank 4: must be in [0, 4)",
                       distx::ConnectError);
  CHECK_THROWS_AS(FileConnector(folder.path(), -1, 4), distx::ConnectError);
}

TEST_CASE("removing the folder makes the calls throw") {
  const NewFolder folder;
  const auto messages = each_in(
      folder.path(), 2,
      [&](FileConnector& connector) {
        try {
          connector.barrier();
          std::error_code error;  // rank 1 may add files meanwhile; rank 0 does not arrive before all are gone
          if (connector.rank() == 0)
            while (std::filesystem::exists(folder.path())) std::filesystem::remove_all(folder.path(), error);
          connector.barrier();
        } catch (const distx::Error&) {
          return;
        }
        throw std::runtime_error("nothing was thrown");
      },
      seconds(5));
  for (const auto& message : messages) CHECK(message == "");
}

TEST_CASE("every rank polls the reason that one rank published, on any thread") {
  for (const int size : {1, 2, 4}) {
    const NewFolder folder;
    CHECK(each_in(folder.path(), size, [&](FileConnector& connector) {
            const auto channel = connector.failure_channel();
            expect(!channel->poll(5), "too early");
            connector.barrier();
            std::atomic<bool> right{false};
            std::jthread watcher([&] {
              distx::detail::wait_until(
                  seconds(20), [&] { return channel->poll(5).has_value(); }, [] { return false; });
              right = channel->poll(5) == "reason";
            });
            if (connector.rank() == size - 1) channel->publish(5, "reason");
            watcher.join();
            expect(right, "no reason");
            connector.barrier();
            channel->publish(5, "too late");
            connector.barrier();
            expect(channel->poll(5) == "reason" && !channel->poll(6), "the first reason stays");
          }) == Messages(static_cast<std::size_t>(size)));
    CHECK(folder.empty());
  }
}

TEST_CASE("a poll that cannot read the folder is a failure under its identity, and the connector continues") {
  const NewFolder folder;
  FileConnector connector(folder.path(), 0, 1);
  const auto channel = connector.failure_channel();
  rlimit files{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  const rlimit none{3, files.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const auto reason = channel->poll(1);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &files) == 0);
  REQUIRE(reason);
  CHECK(contains(*reason, "Too many open files"));
  CHECK(channel->poll(1) == reason);
  CHECK(!channel->poll(2));
  connector.barrier();
  CHECK(connector.shrink(seconds(1)).size() == 1);
}

TEST_CASE("a folder that cannot be listed is not taken for an empty one") {
  const NewFolder folder;
  const auto outer = open_folder(folder.path());
  rlimit files{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  const rlimit none{3, files.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const auto error = test::error_of<distx::ConnectError>([&] { (void)file::state_of(outer, {}); });
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &files) == 0);
  CHECK(contains(error, "cannot read '" + folder.path().string() + "' (Too many open files)"));
  CHECK(file::state_of(outer, {}) == file::JobState::empty);
}

TEST_CASE("a job is not over while its ranks go from one generation to the next") {
  const NewFolder folder;
  const auto inner = open_folder(folder.path()).make_inside("run-word");
  const auto self = file::this_process();
  file::Generation members;
  for (const char* rank : {"0", "1"}) members.push_back({rank, self});
  for (const int rank : {0, 1}) inner.put(file::hello_file(rank), hello_of("word", 2, self));
  inner.put(file::members_file, file::text_of(members));
  // To list these takes longer than the ranks do.
  for (int call = 0; call < 3000; ++call) std::ofstream(inner.path() / ("call-" + std::to_string(call) + "-0"));
  int over = 0;
  for (int round = 0; round < 20; ++round) {
    for (const int rank : {0, 1}) inner.remove(file::left_file(rank));
    inner.remove(file::file_of(file::members_file, 1));
    std::atomic<bool> done{false};
    const std::jthread ranks([&] {
      inner.put(file::file_of(file::members_file, 1), file::text_of(members));
      for (const int rank : {0, 1}) inner.put(file::left_file(rank), {});
      done = true;
    });
    do over += file::state_of(inner, self) != file::JobState::running;
    while (!done);
  }
  CHECK(over == 0);
}

TEST_CASE("concurrent failures: exactly one reason is kept, the same on every rank") {
  const NewFolder folder;
  CHECK(each_in(folder.path(), 4, [&](FileConnector& connector) {
          for (std::uint64_t identity = 0; identity < 10; ++identity) {
            connector.failure_channel()->publish(identity, std::string(1, static_cast<char>('a' + connector.rank())));
            connector.barrier();
            const auto all = distx::all_gather_values(connector, (*connector.failure_channel()->poll(identity))[0]);
            expect(all == std::vector<char>(4, all[0]), "the ranks polled different reasons");
          }
        }) == Messages(4));
}

TEST_CASE("put replaces a file, put_first keeps it") {
  const NewFolder folder;
  const auto files = open_folder(folder.path());
  CHECK(!files.read("a"));
  files.put("a", "one");
  files.put("a", std::string("two\0three", 9));
  CHECK(files.read("a") == std::string("two\0three", 9));
  CHECK(files.put_first("b", "first"));
  CHECK(!files.put_first("b", "second"));
  CHECK(files.read("b") == "first");
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), std::filesystem::directory_iterator()) == 2);
}

TEST_CASE("a process is identified by its id and its start") {
  const auto self = file::this_process();
  REQUIRE(self.id > 0);
  REQUIRE(self.began > 0);
  CHECK(!file::has_ended(self, self));
  auto other = self;
  other.began += 1;
  CHECK(file::has_ended(other, self));
  other.host = "another-host";
  CHECK(!file::has_ended(other, self));  // nothing is known of it
  std::istringstream text(self.text());
  file::Process read;
  text >> read;
  CHECK(read.shares_host_with(self));
  CHECK((read.id == self.id && read.began == self.began));
  const auto state =
      distx::detail::posix::process_state_from("12 (a (b) c\nd) R 1 1 1 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 777 9");
  CHECK((state.state == 'R' && state.threads == 1 && state.began == 777));
}

TEST_CASE("a process whose first thread has ended is not over while another of its threads is left") {
  const auto zombie_of = [](const std::string& threads) {
    return distx::detail::posix::process_state_from("12 (a) Z 1 1 1 0 -1 4 0 0 0 0 0 0 0 0 20 0 " + threads +
                                                    " 0 777 9");
  };
  CHECK(!distx::detail::posix::is_over(zombie_of("2"), 777));
  CHECK(distx::detail::posix::is_over(zombie_of("1"), 777));
  CHECK(distx::detail::posix::is_over(zombie_of("2"), 778));  // another process has its number
}

}  // namespace
