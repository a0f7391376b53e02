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
enum class Renames : std::uint8_t { as_usual, without_conditions, with_lost_replies };

std::atomic<Then> then = Then::nothing;
std::atomic<int> calls_left = 0;
std::atomic<Renames> renames = Renames::as_usual;

/// Returns whether this call is to fail; does not return if the process is to die here.
bool here() {
  if (then == Then::nothing || --calls_left != 0) return false;
  if (then == Then::die) ::_exit(9);
  errno = ENOSPC;
  return true;
}

/// Returns whether a call that has succeeded is to be reported as a failure.
bool loses_reply() {
  if (renames != Renames::with_lost_replies) return false;
  errno = EEXIST;
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
  if (here()) return -1;
  if (flags != 0 && renames != Renames::as_usual) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_renameat2, from, old_name, to, new_name, flags));
}
int renameat(int from, const char* old_name, int to, const char* new_name) noexcept {
  return renameat2(from, old_name, to, new_name, 0);
}
int rename(const char* old_name, const char* new_name) noexcept {
  const int result = renameat2(AT_FDCWD, old_name, AT_FDCWD, new_name, 0);
  return result == 0 && loses_reply() ? -1 : result;
}
int link(const char* old_name, const char* new_name) noexcept {
  const int result = static_cast<int>(::syscall(SYS_linkat, AT_FDCWD, old_name, AT_FDCWD, new_name, 0));
  return result == 0 && loses_reply() ? -1 : result;
}
int unlinkat(int folder, const char* name, int flags) noexcept {
  return here() ? -1 : static_cast<int>(::syscall(SYS_unlinkat, folder, name, flags));
}
int rmdir(const char* name) noexcept {
  return here() ? -1 : static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, name, AT_REMOVEDIR));
}
int mkdir(const char* name, mode_t mode) noexcept {
  return here() ? -1 : static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, name, mode));
}
}

namespace {

using model::Folder;
using model::on_ranks;
using model::Trainer;
using model::WholeState;

using namespace std::chrono_literals;

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

std::ptrdiff_t entries(const std::filesystem::path& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
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
      on_ranks(1, [&](distx::ThreadCommunicator& comm) {
        Trainer<> trainer(comm, distx::AdamW{}, {.stage = 0});
        distx::checkpoint::save(folder.path(), trainer.training(), {.step = 3, .keep = 1, .stale_after = 0s});
      });
      CHECK(entries(folder.path()) == 1);
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
      for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
        CHECK(entry.path().extension() != ".part");
      CHECK(load_newest(folder) == 2);
      REQUIRE(number < 1000);
    }
    CHECK(number > 20);
  }
}

TEST_CASE("where renames have no conditions, or report success as failure, saves and files replace nothing") {
  for (const auto how : {Renames::without_conditions, Renames::with_lost_replies}) {
    const Folder folder;
    renames = how;
    on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
      Trainer<> trainer(comm, distx::AdamW{}, {.stage = 3});
      distx::checkpoint::save(folder.path(), trainer.training(), {.step = 1});
      CHECK_THROWS_AS(distx::checkpoint::save(folder.path(), trainer.training(), {.step = 1}), distx::CheckpointError);
    });
    CHECK(load_newest(folder) == 1);
    const auto file = folder.path() / "model.safetensors";
    distx::checkpoint::write_safetensors(file, {});
    CHECK_THROWS_AS(distx::checkpoint::write_safetensors(file, {}), distx::CheckpointError);
    renames = Renames::as_usual;
    CHECK(distx::checkpoint::SafetensorsFile(file).tensors().empty());
    CHECK(entries(folder.path()) == 2);
  }
}
