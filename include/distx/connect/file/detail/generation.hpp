// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <chrono>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>

#include "distx/connect/control/messages.hpp"
#include "distx/connect/file/detail/folder.hpp"
#include "distx/core/detail/wait.hpp"

namespace distx::inline DISTX_ABI::detail::file {

using control::Frame;
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

/// A process that is in a generation of a job, or asks to be.
struct Member {
  /// The rank in the generation before, or the random word of a process that joins; in an answer, the job's folder.
  std::string who;
  Process process;
  int number = 0;  ///< of ranks that it expects; in an answer, of the generation that admits the process

  [[nodiscard]] std::string text() const { return who + ' ' + std::to_string(number) + ' ' + process.text() + '\n'; }
  friend std::istream& operator>>(std::istream& in, Member& member) {
    return in >> member.who >> member.number >> member.process;
  }
  /// Returns the member in a file; null if there is none.
  [[nodiscard]] static std::optional<Member> in(const Folder& folder, const std::string& file) {
    Member member;
    if (std::istringstream(folder.read(file).value_or("")) >> member) return member;
    return std::nullopt;
  }
};

/// A process asks to join by a file of the first name in the user's folder. The second one, of which the first writer
/// stays, has rank 0 as a member, with the job's folder and the number of the generation that admits it; or says that
/// it does not wait any more.
[[nodiscard]] inline std::string request_file(const std::string& word) { return "join-" + word; }
[[nodiscard]] inline std::string answer_file(const std::string& word) { return "answer-" + word; }

/// Returns the processes that wait in the user's folder; removes the files of those that have ended.
[[nodiscard]] inline std::vector<Member> candidates_in(const Folder& outer, const Process& self) {
  std::vector<Member> found;
  for (const auto& name : outer.names()) {
    const auto candidate = name.starts_with(request_file("")) ? Member::in(outer, name) : std::nullopt;
    if (!candidate) continue;
    const auto answer = answer_file(candidate->who);
    if (has_ended(candidate->process, self)) {
      outer.remove(name);
      outer.remove(answer);
    } else if (!outer.has(answer)) {
      found.push_back(*candidate);
    }
  }
  return found;
}

/// The ranks of a generation of a job, in their order.
using Generation = std::vector<Member>;

[[nodiscard]] inline std::string text_of(const Generation& generation) {
  std::string text;
  for (const auto& member : generation) text += member.text();
  return text;
}
[[nodiscard]] inline Generation generation_from(const std::optional<std::string>& text) {
  std::istringstream in(text.value_or(""));
  return {std::istream_iterator<Member>(in), {}};
}
/// Returns the rank of a member; -1 if it is not one.
[[nodiscard]] inline int rank_of(const std::string& who, const Generation& generation) noexcept {
  const auto found = std::ranges::find(generation, who, &Member::who);
  return found == generation.end() ? -1 : static_cast<int>(found - generation.begin());
}

/// A file in a job's folder that lists the members of a generation: for those that join, and for later jobs.
inline constexpr const char* members_file = "members";
/// The file by which a rank says that it does not use its generation's files any more.
[[nodiscard]] inline std::string left_file(int rank) { return "left-" + std::to_string(rank); }
/// The file by which a rank answers rank 0's offer, or offers.
[[nodiscard]] inline std::string hello_file(int rank) { return "hello-" + std::to_string(rank); }
/// A file that says that rank 0 made the user's folder.
inline constexpr const char* made_file = "made";

/// Returns a file's name in a generation: how often the ranks have shrunk or grown.
[[nodiscard]] inline std::string file_of(std::string_view base, int generation) {
  return std::string(base).append(generation == 0 ? "" : "." + std::to_string(generation));
}

/// The state of a job by the files in its folder: it has no ranks, because none has answered yet, all have taken their
/// answers back, or another process removes the files; every rank of every generation has left or its process has
/// ended; or not.
enum class JobState { empty, over, running };
[[nodiscard]] inline JobState state_of(const Folder& inner, const Process& self) {
  auto state = JobState::empty;
  const auto runs = [&](const std::string& left, const Process& process) {
    state = JobState::over;
    return !inner.has(left) && !has_ended(process, self);
  };
  for (const auto& name : inner.names())
    if (name.starts_with("hello-"))
      if (runs("left" + name.substr(5), Member::in(inner, name).value_or(Member()).process)) return JobState::running;
  // A rank lists the next generation before it leaves one: a process that finds that all have left finds the next.
  for (int each = 0; const auto text = inner.read(file_of(members_file, each)); ++each)
    for (int rank = 0; const auto& member : generation_from(text))
      if (runs(file_of(left_file(rank++), each), member.process)) return JobState::running;
  return state;
}

/// A process's membership in a job: its folder, its rank, and the present generation.
struct Membership {
  Folder outer;      ///< the user's
  std::string name;  ///< the job's folder inside it
  Folder inner;      ///< the same, opened
  int rank = 0;
  Generation ranks{};
  int generation = 0;  ///< how often the ranks have shrunk or grown

  /// Returns the name that a file of the present generation has.
  [[nodiscard]] std::string file(std::string_view base) const { return file_of(base, generation); }
  /// Removes the job's files, and `outer` if rank 0 made it and nothing else is in it.
  void remove() const noexcept try {
    const bool made_outer = inner.has(made_file);
    outer.remove_folder(name);
    if (const auto run = Member::in(outer, "run"); run && name == "run-" + run->who)
      outer.remove("run");  // rank 0 was killed before it did so
    (void)candidates_in(outer, this_process());
    if (made_outer) ::rmdir(outer.path().c_str());
  } catch (...) {  // an earlier error is on its way, or the job has ended
  }
};

/// How a process joins the job that runs in a folder: it asks, and waits until rank 0 of the job admits it.
class JoinRequest {
 public:
  JoinRequest(std::filesystem::path folder, Timeout deadline) : path_(std::move(folder)), timeout_(deadline) {}

  /// @throws ConnectError if the job ends or does not admit this process; RankFailure if rank 0 exits
  [[nodiscard]] Membership join() try {
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
            outer_->put(request_file(mine_.who), mine_.text());
          }
          return outer_->has(answer_file(mine_.who));
        },
        [&] {
          if (!outer_ || !next_look.expired()) return false;
          next_look = Deadline(std::chrono::milliseconds(100));
          if (std::exchange(has_run, job_runs()) && !has_run)
            throw ConnectError("the job in '" + path_.string() + "' ended before it admitted this process", where());
          return false;
        });
    if (end == WaitEnd::ready || (outer_ && !outer_->put_first(answer_file(mine_.who), "withdrawn"))) return;
    const bool runs = outer_ && job_runs();
    throw ConnectError(
        "timed out after " + timeout_.to_string() + (runs ? ": the job in '" : ": no job runs in '") + path_.string() +
            (runs ? "' has not admitted this process: its ranks must call grow() from time to time"
                  : "': set DISTX_FILE to the folder of a running job, or unset DISTX_JOIN to start one"),
        where());
  }
  [[nodiscard]] bool job_runs() const {
    return std::ranges::any_of(outer_->names(), [](const auto& name) { return name.starts_with("run-"); });
  }
  /// Waits until rank 0 has listed the ranks.
  Membership enter() {
    const auto root = Member::in(*outer_, answer_file(mine_.who)).value_or(Member());
    std::optional<Folder> inner;
    Generation generation;
    const auto end = poll_until(
        Deadline(timeout_),
        [&] {
          if (!inner) inner = outer_->inside(root.who);
          if (inner) generation = generation_from(inner->read(file_of(members_file, root.number)));
          return !generation.empty();
        },
        [&] { return has_ended(root.process, mine_.process); });
    if (end != WaitEnd::ready)
      throw RankFailure("rank 0 (" + root.process.to_string() + ") " +
                            (end == WaitEnd::stopped ? "exited" : "did not answer within " + timeout_.to_string()) +
                            " while it admitted this process; start this process again",
                        0, nullptr, where());
    const int rank = rank_of(mine_.who, generation);
    if (rank < 0) throw ConnectError("rank 0 does not list this process: start it again", where());
    clean_up();
    return {std::move(*outer_), root.who, std::move(*inner), rank, std::move(generation), root.number};
  }
  void clean_up() const noexcept {
    if (!outer_) return;
    outer_->remove(request_file(mine_.who));  // first, as long as the answer keeps rank 0 from another one
    outer_->remove(answer_file(mine_.who));
  }

  std::filesystem::path path_;
  Timeout timeout_;
  Member mine_{posix::random_name(32), this_process()};
  std::optional<Folder> outer_;
};

}  // namespace distx::inline DISTX_ABI::detail::file
