// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "distx/connect/detail/connect_url.hpp"
#include "distx/connect/detail/rank_exception.hpp"
#include "distx/connect/file/detail/file_transport.hpp"
#include "distx/connect/file/detail/rendezvous.hpp"
#include "distx/connect/file/spawn_processes.hpp"
#include "distx/core/error.hpp"
#include "distx/core/version.hpp"
#include "distx/posix/mapping.hpp"

namespace distx::inline DISTX_ABI {

DISTX_INLINE FileConnector::FileConnector(const std::filesystem::path& folder, int rank, int size,
                                          const FileConnectorOptions& options)
    : FileConnector(detail::file::group_of(detail::file::Rendezvous(folder, rank, size, options.deadline).meet(),
                                           options.deadline)) {}
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
  const auto [rank, size] = rank_from(variables, "DISTX_RANK", "DISTX_SIZE");
  return FileConnector(folder, rank.value, size.value);
}

DISTX_INLINE AnyConnector connect_by_url(const ConnectUrl& url) {
  url.allow_parameters({"rank", "size", "timeout"});
  if (!url.authority().empty())
    url.refuse("a folder's URL has three slashes, as file:///" + url.authority() + url.path());
  if (url.path().empty()) url.refuse("the folder is missing");
  const FileConnectorOptions options{.deadline = url.timeout()};
  if (url.joins_running_job()) return FileConnector::join(url.path(), options);
  const auto [rank, size] = url.rank();
  return FileConnector(url.path(), rank.value, size.value, options);
}

[[noreturn]] inline void fail_to_spawn(const std::string& problem, int error, const char* advice = "") {
  throw ConnectError(problem + ": " + std::strerror(error) + advice, {.operation = "spawn_processes"}, error);
}

/// The exception with which a child process has ended: written by it to memory that it shares with its parent.
struct ChildReport {
  bool is_consequence;  ///< of another rank's failure
  char message[4096];   ///< empty if there is none
};

/// A process forked from this one.
struct ChildProcess {
  pid_t id;
  const ChildReport* report;
  bool ended = false;
  int status = 0;  ///< see waitpid

  [[nodiscard]] bool failed() const noexcept { return ended && status != 0; }
  void collect() noexcept { ended = ended || ::waitpid(id, &status, WNOHANG) == id; }
  [[nodiscard]] std::string how() const {
    if (report->message[0] != '\0') return std::string("threw: ") + report->message;
    if (!WIFSIGNALED(status)) return "exited with status " + std::to_string(WEXITSTATUS(status));
    const int number = WTERMSIG(status);
    return "was killed by signal " + std::to_string(number) + " (" + ::strsignal(number) + ")";
  }
};

/// The processes of `spawn_processes`. The destructor kills those that still run.
class ChildProcesses {
 public:
  /// @throws ConnectError if the system has no memory for the reports
  explicit ChildProcesses(std::size_t most) {
    const auto bytes = most * sizeof(ChildReport);
    void* const shared = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) fail_to_spawn("cannot start a process", errno);
    memory_ = posix::Mapping::from_native_handle({shared, bytes});
  }
  ChildProcesses(const ChildProcesses&) = delete;
  ChildProcesses& operator=(const ChildProcesses&) = delete;
  ~ChildProcesses() {
    for (const ChildProcess& child : all_)
      if (!child.ended) ::kill(child.id, SIGKILL);
    wait(Deadline(no_timeout));
  }
  [[nodiscard]] const std::vector<ChildProcess>& all() const noexcept { return all_; }

  /// Starts a process that runs `body()` and exits. @throws ConnectError if the system cannot start one
  template <class Body>
  void start(Body&& body) {
    auto* const report = static_cast<ChildReport*>(memory_.native_handle().address) + all_.size();
    const pid_t parent = ::getpid(), process = ::fork();
    if (process < 0) fail_to_spawn("cannot start a process", errno);
    if (process == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::_exit(::getppid() == parent ? run(body, *report) : 1);  // what else is open or registered is the parent's
    }
    all_.push_back({process, report});
  }
  /// Waits until all have ended; returns whether they did before the deadline. Returns early if one fails and
  /// `until_failure`.
  bool wait(const Deadline& deadline, bool until_failure = false) {
    const auto all_ended = [&] {
      for (ChildProcess& child : all_) child.collect();
      return std::ranges::all_of(all_, &ChildProcess::ended);
    };
    const auto failed = [&] { return until_failure && std::ranges::any_of(all_, &ChildProcess::failed); };
    return poll_until(deadline, all_ended, failed) == WaitEnd::ready;
  }

 private:
  /// Returns the exit status of a child.
  template <class Body>
  static int run(Body& body, ChildReport& report) noexcept {
    int status = 0;
    try {
      body();
    } catch (...) {
      const auto current = RankException::current();
      report.is_consequence = current.kind != RankException::Kind::cause;
      current.message.copy(report.message, sizeof report.message - 1);
      status = 1;
    }
    std::cout.flush();
    std::fflush(nullptr);
    return status;
  }

  posix::Mapping memory_;
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
    if (error) fail_to_spawn("no folder for temporary files", error.value(), advice);
    remove_abandoned(temporary);
    do {  // again if another job has taken it for an abandoned one
      path_ = temporary / (prefix + posix::random_name(32));
      if (::mkdir(path_.c_str(), 0700) != 0) fail_to_spawn("cannot make a folder for temporary files", errno, advice);
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
  static constexpr const char* advice = "; TMPDIR must name an existing folder";

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
  ChildProcesses processes(static_cast<std::size_t>(count));
  // Otherwise the children would write it, too.
  std::cout.flush();
  std::fflush(nullptr);
  for (int rank = 0; rank < count; ++rank)
    processes.start([&] {
      FileConnector connector(folder.path(), rank, count, {.deadline = deadline});
      f(connector);
    });
  if (!processes.wait(Deadline(no_timeout), true)) processes.wait(Deadline(grace));
  // Those that say that another one failed do not say why.
  std::string text;
  int first = -1;
  for (const bool consequences : {false, true})
    for (int rank = 0; rank < count; ++rank) {
      const ChildProcess& process = processes.all()[static_cast<std::size_t>(rank)];
      if (!process.failed() || process.report->is_consequence != consequences || (consequences && first >= 0)) continue;
      if (first < 0) first = rank;
      text += (text.empty() ? "" : "; ") + control::name_of(rank, count) + " " + process.how();
    }
  if (first >= 0) throw RankFailure(text, first, nullptr, {.operation = "spawn_processes", .size = count});
}

}  // namespace detail::file

}  // namespace distx::inline DISTX_ABI
