// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <new>

#include "comm/outcomes.hpp"
#include "connect/in_folder.hpp"
#include "sanitized.hpp"
#include "words.hpp"

// Faulty folders, files and processes.

namespace {

/// The faults of this thread: a file that cannot be written, and one after which the next allocation fails.
thread_local const char* unwritable_file = "";
thread_local const char* last_file = "";
thread_local bool lacks_memory = false;

}  // namespace

// In place of the C library's.
int renameat(int from, const char* old_name, int to, const char* new_name) noexcept {
  if (std::strcmp(new_name, last_file) == 0) lacks_memory = true;
  if (std::strcmp(new_name, unwritable_file) != 0)
    return static_cast<int>(::syscall(SYS_renameat2, from, old_name, to, new_name, 0));
  errno = ENOSPC;
  return -1;
}
#if !DISTX_TESTS_SANITIZED  // sanitizers replace these themselves
void* operator new(std::size_t bytes) {
  void* const memory = std::exchange(lacks_memory, false) ? nullptr : std::malloc(std::max(bytes, std::size_t{1}));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace {

using distx::FileConnector;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::contains;
using test::each;
using test::each_in;
using test::NewFolder;
namespace file = distx::detail::file;

/// Runs `body` in a child process, which then waits to be killed.
template <class Body>
pid_t in_child(Body&& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  try {
    body();
  } catch (...) {
  }
  for (;;) ::pause();
}

void kill_and_reap(pid_t child) {
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

bool wait_until(const std::function<bool()>& ready) {
  return distx::detail::wait_until(seconds(20), ready, [] { return false; }) == distx::detail::WaitEnd::ready;
}

bool has_hello(const std::filesystem::path& folder, int rank) {
  std::error_code error;
  for (const auto& run : std::filesystem::directory_iterator(folder, error))
    if (std::filesystem::exists(run.path() / ("hello-" + std::to_string(rank)), error)) return true;
  return false;
}

TEST_CASE("an entry named 'run' that is not a regular file throws ConnectError on every rank, before the deadline") {
  for (const bool pipe : {false, true}) {
    const NewFolder folder;
    const auto run = folder.path() / "run";
    if (pipe)
      REQUIRE(::mkfifo(run.c_str(), 0600) == 0);
    else
      std::filesystem::create_directory(run);
    std::atomic<int> refused{0};
    const auto messages = each(2, [&](int rank) {
      try {
        FileConnector connector(folder.path(), rank, 2, {.deadline = seconds(20)});
      } catch (const distx::ConnectError& error) {
        if (contains(error.what(), "run' is not a regular file")) ++refused;
      }
    });
    CHECK(messages == std::vector<std::string>(2));
    CHECK(refused == 2);
    CHECK(std::filesystem::exists(run));
    CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
  }
}

TEST_CASE("a folder that other users can write to throws ConnectError on every rank") {
  for (const mode_t mode : {0770u, 0707u, 01777u}) {
    const NewFolder folder;
    REQUIRE(::chmod(folder.path().c_str(), mode) == 0);
    for (const auto& message :
         each(2, [&](int rank) { FileConnector(folder.path(), rank, 2, {.deadline = seconds(1)}); }))
      CHECK(contains(message, "other users may write to folder '" + folder.path().string() + "': run 'chmod go-w'"));
    CHECK(folder.empty());
  }
}

TEST_CASE("a folder of another user throws ConnectError" * doctest::skip(::geteuid() != 0)) {
  const NewFolder folder;
  REQUIRE(::chown(folder.path().c_str(), 12345, 12345) == 0);
  for (const int rank : {0, 1})
    CHECK_THROWS_WITH_AS(FileConnector(folder.path(), rank, 2, {.deadline = seconds(1)}),
                         doctest::Contains("belongs to user 12345, this process runs as user 0"), distx::ConnectError);
}

TEST_CASE("folders and files of a job are readable by their user alone, regardless of the umask") {
  const mode_t before = ::umask(0);
  const NewFolder folder;
  const auto messages = each_in(folder.path() / "made", 2, [&](FileConnector& connector) {
    connector.barrier();
    connector.failure_channel()->publish(3, "reason");
    connector.barrier();
    using std::filesystem::perms;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
      std::error_code error;
      const auto status = entry.status(error);
      if (status.type() == std::filesystem::file_type::not_found) continue;  // the other rank has replaced it
      if ((status.permissions() & (perms::group_all | perms::others_all)) != perms::none)
        throw std::runtime_error(entry.path().string() + " is open to others");
    }
    connector.barrier();
  });
  ::umask(before);
  CHECK(messages == std::vector<std::string>(2));
}

TEST_CASE("a number of ranks that no folder serves throws ConnectError naming the value") {
  CHECK_THROWS_WITH_AS(FileConnector("/nowhere", 0, 2147483647),
                       doctest::Contains("invalid size 2147483647: must be in [1, 65536]"), distx::ConnectError);
}

TEST_CASE("a rank 0 that cannot write a file of its job, or has no memory, leaves no files") {
  const NewFolder folder;
  const auto start = [&] { FileConnector(folder.path() / "made", 0, 1); };
  for (const char* name : {"made", "hello-0", "run", "members"}) {
    unwritable_file = name;
    CHECK_THROWS_WITH_AS(start(), doctest::Contains("(No space left on device)"), distx::ConnectError);
    unwritable_file = "";
    CHECK(folder.empty());
  }
  if (DISTX_TESTS_SANITIZED) return;  // allocations do not fail here
  last_file = "run";
  CHECK_THROWS_AS(start(), std::bad_alloc);
  last_file = "";
  CHECK(folder.empty());
}

TEST_CASE("a rank whose process is killed while the ranks join leaves no files") {
  for (const int killed : {0, 1}) {
    const NewFolder folder;
    const auto path = folder.path() / "made";
    const pid_t child = in_child([&] { FileConnector(path, killed, 3, {.deadline = seconds(60)}); });
    std::atomic<int> failed{0};
    const auto messages = each(1, [&](int) {
      try {
        std::jthread killer([&] {
          if (!wait_until([&] { return has_hello(path, 0) && has_hello(path, 1); })) return;
          kill_and_reap(child);
        });
        FileConnector connector(path, 1 - killed, 3, {.deadline = seconds(30)});
      } catch (const distx::RankFailure& failure) {
        if (failure.failed_rank() == killed && contains(failure.what(), "exited before all ranks had joined")) ++failed;
      }
    });
    CHECK(messages == std::vector<std::string>(1));
    CHECK(failed == 1);
    CHECK(folder.empty());
  }
}

TEST_CASE("a rank that times out makes the others fail at once, and no files stay") {
  const NewFolder folder;
  const auto begin = std::chrono::steady_clock::now();
  const auto messages = each(2, [&](int rank) {
    FileConnector connector(folder.path(), rank, 3, {.deadline = rank == 1 ? milliseconds(200) : milliseconds(60000)});
  });
  CHECK(contains(messages[0], "rank 1 gave up: timed out after 0.2 s: rank 2 of 3 did not join"));
  CHECK(contains(messages[1], "on rank 1 of 3 (file): timed out after 0.2 s: rank 2 of 3 did not join"));
  CHECK(std::chrono::steady_clock::now() - begin < seconds(30));
  CHECK(folder.empty());
}

TEST_CASE("of many ranks, one that waits for a running rank notices that another one was killed") {
  constexpr int ranks = 40;
  const NewFolder folder;
  // The child never destroys its connector.
  const pid_t child =
      in_child([&] { (void)new FileConnector(folder.path(), ranks - 1, ranks, {.deadline = seconds(60)}); });
  std::atomic<bool> over{false};
  const auto messages = each(ranks - 1, [&](int rank) {
    FileConnector connector(folder.path(), rank, ranks, {.deadline = seconds(60)});
    if (rank != 0) return over.wait(false);  // does not enter the barrier while rank 0 waits for it
    kill_and_reap(child);
    const auto begin = std::chrono::steady_clock::now();
    const test::Outcome outcome = test::outcome_of([&] { connector.barrier(); });
    over = true;
    over.notify_all();
    CHECK(std::chrono::steady_clock::now() - begin < seconds(40));
    CHECK(outcome.type == "RankFailure");
    CHECK_MESSAGE(outcome.says("rank 39 of 40 (pid "), outcome.words);
  });
  CHECK(messages == std::vector<std::string>(ranks - 1));
}

TEST_CASE("a malformed failure file throws an error that reports it") {
  namespace control = distx::detail::control;
  const auto failure = [](control::RankEnd end) {
    return text_of(control::Frame{{.kind = control::FrameKind::ended, .end = end, .rank = 0}, "a failure"});
  };
  const auto unknown = static_cast<control::RankEnd>(3);
  for (const auto& text : {std::string(), failure(control::RankEnd::left), failure(unknown),
                           failure(control::RankEnd::threw) + "and more"}) {
    const NewFolder folder;
    std::atomic<bool> is_read{false};
    const auto messages = each_in(folder.path(), 2, [&](FileConnector& connector) {
      connector.barrier();
      if (connector.rank() == 0) {
        for (const auto& run : std::filesystem::directory_iterator(folder.path()))
          file::Folder::open(run.path())->put("failure", text);
        CHECK(wait_until([&] { return is_read.load(); }));
      } else {
        CHECK(wait_until([&] { return connector.failure_channel()->poll(1).has_value(); }));
        is_read = true;
        connector.barrier();
      }
    });
    CHECK(contains(messages[1], "does not say why"));
  }
}

TEST_CASE("a process that is reaped while it is looked at counts as ended, without an error") {
  const auto self = file::this_process();
  const auto before = ::signal(SIGCHLD, SIG_IGN);  // reaps at once
  for (int round = 0; round < 50; ++round) {
    auto process = self;
    process.id = ::fork();
    if (process.id == 0) {
      ::usleep(1000);
      ::_exit(0);
    }
    process.began = distx::detail::posix::process_state(process.id).began;
    CHECK(wait_until([&] {
      for (int look = 0; look < 100; ++look)
        if (file::has_ended(process, self)) return true;
      return false;
    }));
  }
  ::signal(SIGCHLD, before);
}

TEST_CASE("a host is identified by its kernel and process ids, not by its name") {
  CHECK(distx::detail::posix::host_id() == distx::detail::posix::host_id());
  CHECK(distx::detail::posix::host_id()[0] != '\0');
  const auto self = file::this_process();
  auto renamed = self;
  renamed.host_name = "another-name";
  CHECK(renamed.shares_host_with(self));
  CHECK(!file::has_ended(renamed, self));
  renamed.began += 1;
  CHECK(file::has_ended(renamed, self));
}

}  // namespace
