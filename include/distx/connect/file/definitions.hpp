// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <poll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "distx/connect/connect.hpp"
#include "distx/connect/detail/connect_url.hpp"
#include "distx/connect/file/detail/connect.hpp"
#include "distx/connect/file/detail/file_transport.hpp"
#include "distx/connect/file/detail/rendezvous.hpp"
#include "distx/connect/file/spawn_processes.hpp"
#include "distx/core/error.hpp"
#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI {

DISTX_INLINE FileConnector::FileConnector(const std::filesystem::path& folder, int rank, int size,
                                          const FileConnectorOptions& options)
    : FileConnector([&] {
        detail::control::check_rank(rank, size, "file");
        return detail::file::group_of({rank, detail::file::Rendezvous(folder, rank, size, options.deadline).meet()},
                                      options.deadline);
      }()) {}
DISTX_INLINE FileConnector FileConnector::join(const std::filesystem::path& folder,
                                               const FileConnectorOptions& options) {
  return FileConnector(
      detail::file::group_of(detail::file::JoinRequest(folder, options.deadline).join(), options.deadline));
}

namespace detail::file {

DISTX_INLINE AnyConnector connect_in_folder() {
  const Variables variables("file",
                            "; set DISTX_FILE to a folder that all ranks share, DISTX_RANK to the rank (from 0), and "
                            "DISTX_SIZE to the number of ranks");
  const auto folder = variables.text("DISTX_FILE");
  if (joins_running_job("file")) return FileConnector::join(folder);
  const auto size = variables.number("DISTX_SIZE", 1, control::most_ranks);
  const auto announced = variable("DISTX_RANK").empty() ? rank_announced_for(size.value) : std::nullopt;
  const auto rank = announced ? *announced : variables.number("DISTX_RANK", 0, control::most_ranks - 1);
  variables.check_rank(rank, size);
  return FileConnector(folder, rank.value, size.value);
}

DISTX_INLINE AnyConnector connect_by_url(const ConnectUrl& url) {
  url.allow_parameters({"rank", "size", "timeout"});
  if (!url.authority().empty())
    url.refuse("a folder's URL has three slashes, as file:///" + url.authority() + url.path());
  if (url.path().empty()) url.refuse("the folder is missing");
  FileConnectorOptions options;
  if (const auto seconds = url.number("timeout", 0, 1 << 30)) options.deadline = std::chrono::seconds(seconds->value);
  if (url.joins_running_job()) return FileConnector::join(url.path(), options);
  const auto size = url.number_or_variable("size", "DISTX_SIZE", 1, control::most_ranks);
  const auto rank =
      url.number_or_variable("rank", "DISTX_RANK", 0, control::most_ranks - 1, rank_announced_for(size.value));
  Variables("file").check_rank(rank, size);
  return FileConnector(url.path(), rank.value, size.value, options);
}

/// A process forked from this one.
struct ChildProcess {
  pid_t id;
  Descriptor output;  ///< its report; closed when it has ended
  bool ended = false;
  int status = 0;               ///< see waitpid
  std::string report{};         ///< the message of its exception
  bool is_consequence = false;  ///< the exception says that another rank has failed

  [[nodiscard]] bool failed() const noexcept { return ended && status != 0; }
  [[nodiscard]] std::string how() const {
    if (!report.empty()) return "threw: " + report;
    if (!WIFSIGNALED(status)) return "exited with status " + std::to_string(WEXITSTATUS(status));
    const int number = WTERMSIG(status);
    return "was killed by signal " + std::to_string(number) + " (" + ::strsignal(number) + ")";
  }
};

/// The processes of `spawn_processes`. The destructor kills those that still run.
class ChildProcesses {
 public:
  ChildProcesses() = default;
  ChildProcesses(const ChildProcesses&) = delete;
  ChildProcesses& operator=(const ChildProcesses&) = delete;
  ~ChildProcesses() {
    kill();
    wait(Deadline(no_timeout));
  }
  [[nodiscard]] const std::vector<ChildProcess>& all() const noexcept { return all_; }

  /// Starts a process that runs `body()` and exits. @throws ConnectError if the system cannot start one
  template <class Body>
  void start(Body&& body) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) fail();
    auto read_end = Descriptor::from_native_handle(ends[0]);
    const auto write_end = Descriptor::from_native_handle(ends[1]);
    const pid_t parent = ::getpid(), process = ::fork();
    if (process < 0) fail();
    if (process == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::_exit(::getppid() == parent ? run(body, write_end) : 1);  // what else is open or registered is the parent's
    }
    all_.push_back({process, std::move(read_end)});
  }
  /// Waits until all have ended; returns whether they did before the deadline. Returns early if one fails and
  /// `until_failure`.
  bool wait(const Deadline& deadline, bool until_failure = false) {
    for (;;) {
      std::vector<pollfd> open;
      for (ChildProcess& child : all_) {
        collect(child);
        if (child.failed() && until_failure) return false;
        if (!child.ended) open.push_back({child.output.native_handle(), 0, 0});
      }
      if (open.empty()) return true;
      if (deadline.expired()) return false;
      ::poll(open.data(), open.size(), 50);  // ends as soon as a process does, unless it has left the pipe to another
    }
  }
  void kill() noexcept {
    for (const ChildProcess& child : all_)
      if (!child.ended) ::kill(child.id, SIGKILL);
  }

 private:
  static constexpr std::size_t longest_report = 4000;  // bytes; a pipe takes that many at once

  /// Returns the exit status of a child.
  template <class Body>
  static int run(Body& body, const Descriptor& output) noexcept {
    char kind = 'e';
    std::string report;
    try {
      body();
    } catch (const RevokedError& error) {
      kind = 'c', report = error.what();
    } catch (const RankFailure& error) {
      kind = 'c', report = error.what();
    } catch (const std::exception& error) {
      report = error.what();
    } catch (...) {
      report = detail::unknown_exception;
    }
    std::cout.flush();
    std::fflush(nullptr);
    if (report.empty()) return 0;
    report = (kind + report).substr(0, longest_report);
    return ::write(output.native_handle(), report.data(), report.size()) < 0 ? 2 : 1;
  }
  static void collect(ChildProcess& child) {
    if (child.ended || ::waitpid(child.id, &child.status, WNOHANG) != child.id) return;
    child.ended = true;
    char bytes[longest_report];
    if (const auto count = ::read(child.output.native_handle(), bytes, sizeof bytes); count > 0) {
      child.is_consequence = bytes[0] == 'c';
      child.report.assign(bytes + 1, bytes + count);
    }
  }
  [[noreturn]] static void fail() {
    throw ConnectError(std::string("cannot start a process: ") + std::strerror(errno),
                       {.operation = "spawn_processes"});
  }

  std::vector<ChildProcess> all_;
};

/// A new folder for temporary files, which is removed when this is destroyed.
///
/// It is locked for as long as a process runs that has inherited it. If all of a job are killed, a later job removes
/// it.
class TemporaryFolder {
 public:
  /// @throws ConnectError without a place for temporary files
  TemporaryFolder() {
    std::error_code error;
    const auto temporary = std::filesystem::temp_directory_path(error);
    if (error) fail("no folder for temporary files", error.value());
    remove_abandoned(temporary);
    do {  // again if another job has taken it for an abandoned one
      path_ = temporary / (prefix + posix::random_name(32));
      if (::mkdir(path_.c_str(), 0700) != 0) fail("cannot make a folder for temporary files", errno);
      lock_ = locked(path_, LOCK_EX);
    } while (!std::filesystem::exists(path_, error));
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  static constexpr const char* prefix = "distx-spawn-";

  [[noreturn]] static void fail(const std::string& what, int error) {
    throw ConnectError(what + ": " + std::strerror(error) + "; TMPDIR must name an existing folder",
                       {.operation = "spawn_processes"}, error);
  }
  /// Returns a descriptor of this user's folder that keeps it locked; null if that cannot be.
  static Descriptor locked(const std::filesystem::path& path, int how) {
    auto folder = posix::open_file(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    struct ::stat status;
    if (!folder || ::fstat(folder.native_handle(), &status) != 0 || status.st_uid != ::geteuid() ||
        ::flock(folder.native_handle(), how) != 0)
      return {};
    return folder;
  }
  static void remove_abandoned(const std::filesystem::path& temporary) {
    std::error_code error;
    std::filesystem::directory_iterator entries(temporary, error);
    for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
      std::error_code ignored;
      if (entries->path().filename().string().starts_with(prefix))
        if (const auto lock = locked(entries->path(), LOCK_EX | LOCK_NB))
          std::filesystem::remove_all(entries->path(), ignored);
    }
  }

  std::filesystem::path path_;
  Descriptor lock_;
};

DISTX_INLINE void run_processes(int count, const std::function<void(FileConnector&)>& f, Timeout deadline,
                                Timeout grace) {
  if (count < 1)
    throw InvalidArgument("invalid number of processes " + std::to_string(count) + ": must be at least 1",
                          {.operation = "spawn_processes"});
  const TemporaryFolder folder;
  ChildProcesses processes;
  // Otherwise the children would write it, too.
  std::cout.flush();
  std::fflush(nullptr);
  for (int rank = 0; rank < count; ++rank)
    processes.start([&] {
      FileConnector connector(folder.path(), rank, count, {.deadline = deadline});
      f(connector);
    });
  if (!processes.wait(Deadline(no_timeout), true)) processes.wait(Deadline(grace));
  std::vector<int> failed;
  for (int rank = 0; rank < count; ++rank)
    if (processes.all()[static_cast<std::size_t>(rank)].failed()) failed.push_back(rank);
  if (failed.empty()) return;
  // Those that say that another one failed do not say why.
  std::string text;
  int first = -1;
  for (const bool consequences : {false, true})
    for (const int rank : failed) {
      const ChildProcess& process = processes.all()[static_cast<std::size_t>(rank)];
      if (process.is_consequence != consequences || (consequences && first >= 0)) continue;
      if (first < 0) first = rank;
      text += (text.empty() ? "" : "; ") + ("rank " + std::to_string(rank) + " of " + std::to_string(count) + " ") +
              process.how();
    }
  throw RankFailure(text, first, nullptr, {.operation = "spawn_processes", .size = count});
}

}  // namespace detail::file

}  // namespace distx::inline DISTX_ABI
