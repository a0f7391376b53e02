// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <chrono>
#include <sstream>
#include <thread>

#include "distx/connect/control/messages.hpp"
#include "distx/connect/file/detail/folder.hpp"
#include "distx/core/detail/wait.hpp"

namespace distx::inline DISTX_ABI::detail::file {

using control::SentError;
using posix::has_ended;
using posix::Process;
using posix::this_process;

/// Waits until `ready()`, with pauses that grow to five milliseconds.
///
/// `stopped()`, which may cost more than `ready()` and may throw, is called once the wait has become long.
template <class Ready, class Stopped>
WaitEnd poll_until(const Deadline& deadline, Ready&& ready, Stopped&& stopped) {
  using std::chrono::microseconds;
  for (microseconds pause(50);; pause = std::min(2 * pause, microseconds(5000))) {
    if (ready()) return WaitEnd::ready;
    if (pause > microseconds(500) && stopped()) return ready() ? WaitEnd::ready : WaitEnd::stopped;
    if (deadline.expired()) return ready() ? WaitEnd::ready : WaitEnd::expired;
    std::this_thread::sleep_for(pause);
  }
}

/// A process that is in the next generation of a job, or waits to be.
struct NextMember {
  std::string who;  ///< the rank in the generation before, or the random word of a process that joins
  Process process;
};

/// A process asks to join by a file of the first name in the user's folder. The second one, of which the first writer
/// stays, says that rank 0 admits it, or that it does not wait any more.
[[nodiscard]] inline std::string request_file(const std::string& word) { return "join-" + word; }
[[nodiscard]] inline std::string answer_file(const std::string& word) { return "answer-" + word; }

/// Returns the processes that wait in the user's folder; removes the files of those that have ended.
[[nodiscard]] inline std::vector<NextMember> candidates_in(const Folder& outer, const Process& self) {
  std::vector<NextMember> found;
  const std::string prefix = request_file("");
  for (const auto& name : outer.names()) {
    if (!name.starts_with(prefix)) continue;
    const auto word = name.substr(prefix.size());
    Process process;
    if (!(std::istringstream(outer.read(name).value_or("")) >> process)) continue;
    if (has_ended(process, self)) {
      outer.remove(name);
      outer.remove(answer_file(word));
    } else if (!outer.has(answer_file(word))) {
      found.push_back({word, std::move(process)});
    }
  }
  return found;
}

/// The ranks of a generation of a job, in their order.
struct Generation {
  bool made_outer = false;  ///< see Membership
  std::vector<NextMember> members{};

  [[nodiscard]] std::string text() const {
    std::string text = made_outer ? "1\n" : "0\n";
    for (const auto& member : members) text += member.who + ' ' + member.process.text() + '\n';
    return text;
  }
  [[nodiscard]] static Generation from(const std::optional<std::string>& text) {
    std::istringstream in(text.value_or(""));
    Generation generation;
    in >> generation.made_outer;
    for (NextMember member; in >> member.who >> member.process;) generation.members.push_back(member);
    return generation;
  }
  /// Returns the rank of a member; -1 if it is not one.
  [[nodiscard]] int rank_of(const std::string& who) const noexcept {
    const auto found = std::find_if(members.begin(), members.end(), [&](const auto& one) { return one.who == who; });
    return found == members.end() ? -1 : static_cast<int>(found - members.begin());
  }
  [[nodiscard]] std::vector<Process> processes() const {
    std::vector<Process> all;
    for (const auto& member : members) all.push_back(member.process);
    return all;
  }
};

/// A file of a generation, which lists its members: for those that join, and for later jobs.
inline constexpr const char* members_file = "members";
/// The file by which a rank says that it does not use its generation's files any more.
[[nodiscard]] inline std::string left_file(int rank) { return "left-" + std::to_string(rank); }

/// A process's membership in a job: its folder, and the process of each rank.
struct Membership {
  Folder outer;      ///< the user's
  std::string name;  ///< the job's folder inside it
  Folder inner;      ///< the same, opened
  std::vector<Process> ranks;
  bool made_outer = false;  ///< rank 0 made `outer`
  int generation = 0;       ///< how often the ranks have shrunk or grown

  /// Returns the name that a file of the present generation has.
  [[nodiscard]] std::string file(const std::string& base) const { return file(base, generation); }
  /// Returns whether every rank of every generation has left it or its process has ended.
  [[nodiscard]] bool is_left() const {
    const Process self = this_process();
    for (int each = 0;; ++each) {
      const auto text = inner.read(file(members_file, each));
      if (!text) return true;
      const auto processes = Generation::from(text).processes();
      for (std::size_t rank = 0; rank < processes.size(); ++rank)
        if (!inner.has(file(left_file(static_cast<int>(rank)), each)) && !has_ended(processes[rank], self))
          return false;
    }
  }
  /// Removes the job's files, and `outer` if rank 0 made it and nothing else is in it.
  void remove() const noexcept try {
    outer.remove_folder(name);
    if (const auto run = outer.read("run"); run && name == "run-" + run->substr(0, run->find(' ')))
      outer.remove("run");  // rank 0 was killed before it did so
    (void)candidates_in(outer, this_process());
    if (made_outer) ::rmdir(outer.path().c_str());
  } catch (...) {  // an earlier error is on its way, or the job has ended
  }

  [[nodiscard]] static std::string file(const std::string& base, int generation) {
    return generation == 0 ? base : base + '.' + std::to_string(generation);
  }
};

/// A rank of a running job that this process has joined.
struct JoinedRank {
  int rank = 0;
  Membership job;
};

/// How a process joins the job that runs in a folder: it asks, and waits until rank 0 of the job admits it.
class JoinRequest {
 public:
  JoinRequest(std::filesystem::path folder, Timeout deadline) : path_(std::move(folder)), timeout_(deadline) {}

  /// @throws ConnectError if the job ends or does not admit this process; RankFailure if rank 0 exits
  [[nodiscard]] JoinedRank join() try {
    await_answer();
    return enter();
  } catch (...) {
    clean_up();
    throw;
  }

 private:
  static ErrorContext where() noexcept { return {.operation = "connect", .backend = "file"}; }

  void await_answer() {
    bool has_run = false;
    Deadline next_look(std::chrono::milliseconds(0));
    const auto end = poll_until(
        Deadline(timeout_),
        [&] {
          if (!outer_) {
            if (!(outer_ = Folder::open(path_))) return false;
            has_run = job_runs();
            outer_->put(request_file(word_), self_.text() + '\n');
          }
          return outer_->has(answer_file(word_));
        },
        [&] {
          if (!outer_ || !next_look.expired()) return false;
          next_look = Deadline(std::chrono::milliseconds(100));
          const bool runs = job_runs();
          if (has_run && !runs)
            throw ConnectError("the job in '" + path_.string() + "' ended before it admitted this process", where());
          has_run = runs;
          return false;
        });
    if (end == WaitEnd::ready || (outer_ && !outer_->put_first(answer_file(word_), "withdrawn"))) return;
    const std::string after = "timed out after " + timeout_.to_string() + ": ";
    if (!outer_ || !job_runs())
      throw ConnectError(after + "no job runs in '" + path_.string() +
                             "': set DISTX_FILE to the folder of a running job, or unset DISTX_JOIN to start one",
                         where());
    throw ConnectError(after + "the job in '" + path_.string() +
                           "' has not admitted this process: its ranks must call grow() from time to time",
                       where());
  }
  [[nodiscard]] bool job_runs() const {
    const auto names = outer_->names();
    return std::any_of(names.begin(), names.end(), [](const auto& name) { return name.starts_with("run-"); });
  }
  /// Waits until rank 0 has listed the ranks.
  JoinedRank enter() {
    std::string name;
    int number = 0;
    Process root;
    std::istringstream(outer_->read(answer_file(word_)).value_or("")) >> name >> number >> root;
    std::optional<Folder> inner;
    Generation generation;
    const auto end = poll_until(
        Deadline(timeout_),
        [&] {
          if (!inner && !(inner = outer_->inside(name))) return false;
          generation = Generation::from(inner->read(Membership::file(members_file, number)));
          return !generation.members.empty();
        },
        [&] { return has_ended(root, self_); });
    if (end != WaitEnd::ready)
      throw RankFailure("rank 0 (" + root.to_string() + ") " +
                            (end == WaitEnd::stopped ? "exited" : "did not answer within " + timeout_.to_string()) +
                            " while it admitted this process; start this process again",
                        0, nullptr, where());
    const int rank = generation.rank_of(word_);
    if (rank < 0) throw ConnectError("rank 0 does not list this process: start it again", where());
    clean_up();
    return {rank, {std::move(*outer_), name, std::move(*inner), generation.processes(), generation.made_outer, number}};
  }
  void clean_up() const noexcept {
    if (!outer_) return;
    outer_->remove(request_file(word_));  // first, as long as the answer keeps rank 0 from another one
    outer_->remove(answer_file(word_));
  }

  std::filesystem::path path_;
  Timeout timeout_;
  std::string word_ = posix::random_name(32);
  Process self_ = this_process();
  std::optional<Folder> outer_;
};

}  // namespace distx::inline DISTX_ABI::detail::file
