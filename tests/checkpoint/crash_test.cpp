// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <atomic>
#include <cstdlib>

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <distx/comm/point_to_point.hpp>

#include "model.hpp"

// The system calls of a save, replaced by ones that stop the process, or fail, at a chosen call.
namespace {

enum class Then : std::uint8_t { nothing, die, fail };

std::atomic<Then> then = Then::nothing;
std::atomic<int> calls_left = 0;

/// Returns whether this call is to fail; does not return if the process is to die here.
bool here() {
  if (then == Then::nothing || --calls_left != 0) return false;
  if (then == Then::die) ::_exit(9);
  errno = ENOSPC;
  return true;
}

}  // namespace

extern "C" {
ssize_t write(int file, const void* bytes, std::size_t size) {
  if (file <= 2) return ::syscall(SYS_write, file, bytes, size);
  if (!here()) return ::syscall(SYS_write, file, bytes, size);
  return -1;
}
int fsync(int file) { return here() ? -1 : static_cast<int>(::syscall(SYS_fsync, file)); }
int renameat2(int from, const char* old_name, int to, const char* new_name, unsigned flags) noexcept {
  return here() ? -1 : static_cast<int>(::syscall(SYS_renameat2, from, old_name, to, new_name, flags));
}
}

namespace {

using model::Folder;
using model::on_ranks;
using model::Trainer;
using model::WholeState;

constexpr int ranks = 2;

/// Saves step 1, arms `what` for the `number`-th call, and tries to save step 2.
/// @param async  in a thread, while a step is made
/// @return whether the call was reached
bool save_two(const Folder& folder, Then what, int number, bool async) {
  std::atomic<int> failed = 0;
  on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 3});
    trainer.step(1);
    distx::checkpoint::save(folder.path(), trainer.training(), {.step = 1});
    trainer.step(2);
    if (comm.rank() == 0) {
      calls_left = number;
      then = what;
    }
    distx::barrier(comm);
    try {
      if (async) {
        auto pending = distx::checkpoint::save_async(folder.path(), trainer.training(), {.step = 2, .keep = 1});
        trainer.step(3);
        pending.finish();
      } else {
        distx::checkpoint::save(folder.path(), trainer.training(), {.step = 2, .keep = 1});
      }
    } catch (const distx::CheckpointError& error) {
      CHECK(error.code() == ENOSPC);
      ++failed;
    }
    distx::barrier(comm);
    then = Then::nothing;
    distx::barrier(comm);
    if (failed == 0) return;
    trainer.step(3);  // the training continues, and saves the step where there is space again
    if (distx::checkpoint::latest(folder.path()) != folder.path() / "step-000000000002")
      distx::checkpoint::save(folder.path(), trainer.training(), {.step = 2});
  });
  CHECK((failed == 0 || failed == ranks));
  return failed > 0;
}

/// Loads the newest checkpoint and returns its step.
std::uint64_t load_newest(const Folder& folder) {
  std::uint64_t step = 0;
  on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 1}, 1);
    const auto newest = distx::checkpoint::latest(folder.path());
    REQUIRE(newest.has_value());
    const auto loaded = distx::checkpoint::load(*newest, trainer.training());
    if (comm.rank() == 0) step = loaded.step;
  });
  return step;
}

}  // namespace

TEST_CASE("a process that dies at any write, fsync or rename of a save leaves the old or the new checkpoint, whole") {
  for (const bool async : {false, true}) {
    CAPTURE(async);
    int old = 0, renewed = 0;
    for (int number = 1;; ++number) {
      CAPTURE(number);
      const Folder folder;
      const ::pid_t child = ::fork();
      REQUIRE(child >= 0);
      if (child == 0) {
        save_two(folder, Then::die, number, async);
        ::_exit(0);
      }
      int status = 0;
      REQUIRE(::waitpid(child, &status, 0) == child);
      REQUIRE(WIFEXITED(status));
      const bool died = WEXITSTATUS(status) == 9;
      const auto step = load_newest(folder);
      ++(step == 1 ? old : renewed);
      if (!died) {
        CHECK(step == 2);
        break;
      }
      REQUIRE(number < 1000);
    }
    CHECK(old > 20);     // the calls before the manifest has its name
    CHECK(renewed > 2);  // those after it
  }
}

TEST_CASE("a disk that is full at any call of a save is a CheckpointError on every rank, and the training continues") {
  for (const bool async : {false, true}) {
    CAPTURE(async);
    int number = 1;
    for (bool reached = true; reached; ++number) {
      CAPTURE(number);
      const Folder folder;
      reached = save_two(folder, Then::fail, number, async);
      CHECK(load_newest(folder) == 2);
      REQUIRE(number < 1000);
    }
    CHECK(number > 20);
  }
}
