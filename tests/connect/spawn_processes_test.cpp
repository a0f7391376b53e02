// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Ranks that are forked from this process.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "distx/file.hpp"

namespace {

using namespace std::chrono_literals;

void never_ends() {
  for (;;) std::this_thread::sleep_for(1h);
}

/// Returns the error of `spawn_processes(ranks, f)`, and checks that nothing is left.
template <class F>
distx::RankFailure failure_of(int ranks, F f, distx::Timeout grace = 10s) {
  distx::RankFailure failure("nothing was thrown", -1);
  std::string temporary = std::filesystem::temp_directory_path() / "distx-test-XXXXXX";
  REQUIRE(::mkdtemp(temporary.data()) != nullptr);
  ::setenv("TMPDIR", temporary.c_str(), 1);
  try {
    distx::detail::file::run_processes(ranks, f, 60s, grace);
  } catch (const distx::RankFailure& error) {
    failure = error;
  }
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
  CHECK(std::filesystem::is_empty(temporary));
  std::filesystem::remove_all(temporary);
  ::unsetenv("TMPDIR");
  return failure;
}
bool says(const distx::RankFailure& failure, const std::string& text) {
  INFO(failure.what());
  const bool found = std::string(failure.what()).find(text) != std::string::npos;
  CHECK(found);
  return found;
}

TEST_CASE("spawn_processes connects ranks that are processes of one host") {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    const pid_t parent = ::getpid();
    distx::spawn_processes(ranks, [&](distx::FileConnector& connector) {
      const auto all = distx::all_gather_values(connector, ::getpid());
      const bool right = connector.size() == ranks && connector.local_size() == ranks && ::getppid() == parent &&
                         all[static_cast<std::size_t>(connector.rank())] == ::getpid();
      if (!right || std::count(all.begin(), all.end(), ::getpid()) != 1) throw std::runtime_error("wrong ranks");
    });
    CHECK(::getpid() == parent);
  }
}

TEST_CASE("spawn_processes reports an exception, and ends the waits of the other ranks") {
  const auto failure = failure_of(3, [](distx::FileConnector& connector) {
    if (connector.rank() == 1) throw std::out_of_range("no such sample");
    connector.barrier();
  });
  CHECK(failure.failed_rank() == 1);
  CHECK(says(failure, "rank 1 of 3 threw: no such sample"));
  CHECK(std::string(failure.what()).find("rank 0") == std::string::npos);
}

TEST_CASE("spawn_processes reports a signal and an exit status") {
  const auto killed = failure_of(3, [](distx::FileConnector& connector) {
    connector.barrier();
    if (connector.rank() == 2) ::raise(SIGKILL);
    connector.barrier();
  });
  CHECK(killed.failed_rank() == 2);
  CHECK(says(killed, "rank 2 of 3 was killed by signal 9 (Killed)"));
  const auto exited = failure_of(2, [](distx::FileConnector& connector) {
    connector.barrier();
    if (connector.rank() == 0) ::_exit(5);
    connector.barrier();
  });
  CHECK(exited.failed_rank() == 0);
  CHECK(says(exited, "rank 0 of 2 exited with status 5"));
}

TEST_CASE("spawn_processes collects the errors of several ranks, and kills those that do not end") {
  const auto failure = failure_of(
      4,
      [](distx::FileConnector& connector) {
        connector.barrier();
        if (connector.rank() == 3) never_ends();
        if (connector.rank() == 0) throw std::runtime_error("the first");
        if (connector.rank() == 2) throw std::runtime_error("the second");
        connector.barrier();
      },
      1s);
  CHECK(failure.failed_rank() == 0);
  CHECK(says(failure, "rank 0 of 4 threw: the first; rank 2 of 4 threw: the second"));
}

TEST_CASE("spawn_processes keeps no reports in files") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit small{4096, before.rlim_max};
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  CHECK_NOTHROW(distx::spawn_processes(2, [](distx::FileConnector& connector) { connector.barrier(); }));
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  ::signal(SIGXFSZ, handler);
}

TEST_CASE("spawn_processes truncates long messages, and rejects invalid numbers") {
  const auto failure = failure_of(1, [](distx::FileConnector&) { throw std::runtime_error(std::string(100000, 'x')); });
  CHECK(says(failure, std::string(3000, 'x')));
  CHECK_THROWS_AS(distx::spawn_processes(0, [](distx::FileConnector&) {}), distx::InvalidArgument);
  ::setenv("TMPDIR", "/no/such/folder", 1);
  CHECK_THROWS_WITH_AS(distx::spawn_processes(1, [](distx::FileConnector&) {}),
                       doctest::Contains("TMPDIR must name an existing folder"), distx::ConnectError);
  ::unsetenv("TMPDIR");
}

/// Runs f in another process, which then waits to be killed; returns its id once it has run f.
template <class F>
pid_t waiting_process(F f) {
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    [[maybe_unused]] const auto kept = f();
    (void)!::write(ready[1], "", 1);
    never_ends();
  }
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  ::close(ready[0]);
  ::close(ready[1]);
  return child;
}
void end_by_kill(pid_t process) {
  ::kill(process, SIGKILL);
  CHECK(::waitpid(process, nullptr, 0) == process);
}

TEST_CASE("a job removes what killed jobs left in its folder, and nothing of a job that runs") {
  std::string temporary = std::filesystem::temp_directory_path() / "distx-test-XXXXXX";
  REQUIRE(::mkdtemp(temporary.data()) != nullptr);
  const auto folder = std::filesystem::path(temporary) / "meet";
  const auto jobs = [&] {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      count += entry.path().filename().string().starts_with("run-") ? 1 : 0;
    return count;
  };
  const auto one_rank = [&] { return distx::FileConnector(folder, 0, 1); };
  const auto shrunk = [&] { return one_rank().shrink(); };
  for (const bool shrinks : {false, true}) {
    const auto started = [&] { return shrinks ? waiting_process(shrunk) : waiting_process(one_rank); };
    end_by_kill(started());
    CHECK(jobs() == 1);
    (void)one_rank();
    CHECK(!std::filesystem::exists(folder));  // which the killed job made
    std::filesystem::create_directory(folder);
    const pid_t killed = started(), runs = started();
    CHECK(jobs() == 2);
    end_by_kill(killed);
    {
      const auto next = one_rank();
      CHECK(jobs() == 2);  // its own and that of the process that runs
    }
    CHECK(jobs() == 1);
    end_by_kill(runs);
    (void)one_rank();
    CHECK(std::filesystem::is_empty(folder));
    std::filesystem::remove(folder);
  }
  std::filesystem::remove_all(temporary);
}

TEST_CASE("a later spawn_processes removes the folder of one that was killed, once its ranks have ended") {
  std::string temporary = std::filesystem::temp_directory_path() / "distx-test-XXXXXX";
  REQUIRE(::mkdtemp(temporary.data()) != nullptr);
  ::setenv("TMPDIR", temporary.c_str(), 1);
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t job = ::fork();
  if (job == 0) {
    distx::spawn_processes(2, [&](distx::FileConnector& connector) {
      connector.barrier();
      (void)!::write(ready[1], "", 1);
      never_ends();
    });
    ::_exit(0);
  }
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  distx::spawn_processes(1, [](distx::FileConnector&) {});
  CHECK(!std::filesystem::is_empty(temporary));  // it is in use
  end_by_kill(job);
  CHECK(distx::detail::wait_until(
            30s,
            [&] {
              distx::spawn_processes(1, [](distx::FileConnector&) {});
              return std::filesystem::is_empty(temporary);
            },
            [] { return false; }) == distx::detail::WaitEnd::ready);
  std::filesystem::remove_all(temporary);
  ::unsetenv("TMPDIR");
}

}  // namespace
