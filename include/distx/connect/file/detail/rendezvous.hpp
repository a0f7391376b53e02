// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/detail/name_ranks.hpp"
#include "distx/connect/file/detail/generation.hpp"
#include "distx/core/detail/early_warning.hpp"

namespace distx::inline DISTX_ABI::detail::file {

/// How ranks that know nothing but a folder find each other in it.
///
/// Rank 0 makes a folder of a random name inside it and writes that name to the file `run`. The others answer in that
/// folder, each with a random word, and have joined once rank 0 repeats the word in the list of members. Files of an
/// earlier job can thus be there and are never used: they do not have this job's words.
class Rendezvous {
 public:
  Rendezvous(std::filesystem::path folder, int rank, int size, Timeout deadline)
      : path_(std::move(folder)), rank_(rank), size_(size), timeout_(deadline), deadline_(deadline) {}

  /// Collective. On an error the last rank removes the files.
  /// @throws ConnectError, TimeoutError, RankFailure: the same type on every rank if rank 0 found the error
  [[nodiscard]] Membership meet() { return rank_ == 0 ? gather() : join(); }

 private:
  struct Hello {
    std::string word;
    int size = 0;
    bool made_outer = false;
    Process process;

    [[nodiscard]] static std::optional<Hello> from(const std::optional<std::string>& text) {
      Hello hello;
      if (!text || !(std::istringstream(*text) >> hello.word >> hello.size >> hello.made_outer >> hello.process))
        return std::nullopt;
      return hello;
    }
    [[nodiscard]] std::string text() const {
      return word + ' ' + std::to_string(size) + (made_outer ? " 1 " : " 0 ") + process.text() + '\n';
    }
  };
  static constexpr const char* refusal_file = "refused";  // why the ranks cannot work together
  static std::string hello_of(int rank) { return "hello-" + std::to_string(rank); }
  static std::string folder_of(const std::string& word) { return "run-" + word; }
  [[nodiscard]] ErrorContext where() const noexcept {
    return {.operation = "connect", .backend = "file", .rank = rank_, .size = size_};
  }
  [[nodiscard]] SentError not_joined(const std::vector<int>& ranks) const {
    return {'t', -1,
            "timed out after " + timeout_.to_string() + ": " + name_ranks(ranks, size_) + " did not join in '" +
                path_.string() + "'"};
  }

  /// Removes this rank's answer, and the job's files if no other living rank has one.
  void leave(const Membership& job) const noexcept try {
    if (const auto hello = Hello::from(job.inner.read(hello_of(rank_))); hello && hello->word == mine_.word)
      job.inner.remove(hello_of(rank_));
    if (state_of(job.inner).over) job.remove();
  } catch (...) {  // the error that broke the rendezvous is reported
  }

  /// The state of a job by its files.
  struct JobState {
    bool over = true;         ///< all processes have ended
    bool began = false;       ///< there are processes
    bool made_outer = false;  ///< see Membership
  };
  [[nodiscard]] JobState state_of(const Folder& inner) const {
    JobState state;
    for (const auto& name : inner.names()) {
      Generation generation;
      if (name.starts_with("hello-")) {
        const auto hello = Hello::from(inner.read(name)).value_or(Hello());
        generation = {hello.made_outer, {{hello.word, hello.process}}};
      } else if (name.starts_with(members_file)) {
        generation = Generation::from(inner.read(name));
      }
      state.made_outer = state.made_outer || generation.made_outer;
      for (const auto& member : generation.members) {
        state.began = true;
        state.over = state.over && has_ended(member.process, mine_.process);
      }
    }
    return state;
  }

  // ---- Rank 0 ----

  Membership gather() {
    mine_.made_outer = Folder::make(path_);
    Membership job = make_job();
    SentError refusal;
    try {
      if (auto found = gather_in(job)) {
        refusal = std::move(*found);
      } else {
        Generation all{mine_.made_outer};
        for (const auto& hello : joined_) all.members.push_back({hello->word, hello->process});
        job.inner.put(members_file, all.text());
        withdraw(job);
        job.ranks = all.processes();
        return job;
      }
    } catch (const Error& error) {
      refusal.message = error.message();
    } catch (...) {
      withdraw(job);
      leave(job);
      throw;
    }
    withdraw(job);
    try {
      job.inner.put(refusal_file, refusal.frame(control::FrameKind::refuse).body);
    } catch (const Error&) {  // the others learn it from the end of this process, or at their deadlines
    }
    leave(job);
    refusal.raise(where());
  }
  [[nodiscard]] Membership make_job() try {
    auto outer = Folder::open(path_);
    if (!outer) throw ConnectError("folder '" + path_.string() + "' was removed while the ranks joined", where());
    remove_abandoned(*outer);
    auto inner = outer->make_inside(folder_of(mine_.word));
    return {std::move(*outer), folder_of(mine_.word), std::move(inner), {}, mine_.made_outer};
  } catch (const Error&) {
    if (mine_.made_outer) ::rmdir(path_.c_str());
    throw;
  }

  /// Removes the folders of jobs whose processes have all ended, as by SIGKILL, without the last one to do it. If such
  /// a job made the outer folder, this one has the duty to remove that, too.
  void remove_abandoned(const Folder& outer) {
    for (const auto& job : outer.names()) {
      const auto inner = job.starts_with("run-") ? outer.inside(job) : std::nullopt;
      const auto state = inner ? state_of(*inner) : JobState();
      if (!state.over || !state.began) continue;  // without processes it may be another job that begins now
      outer.remove_folder(job);
      mine_.made_outer = mine_.made_outer || state.made_outer;
    }
  }

  /// Waits for all ranks; returns why they cannot work together, if so.
  std::optional<SentError> gather_in(const Membership& job) {
    joined_.resize(static_cast<std::size_t>(size_));
    joined_[0] = mine_;
    (void)job.outer.read("run");  // throws for what is not a file, which the offer would replace
    job.inner.put(hello_of(0), mine_.text());
    job.outer.put("run", mine_.text());
    std::optional<SentError> refusal;
    const auto end = poll_until(
        deadline_,
        [&] {
          for (int rank = 1; rank < size_; ++rank)
            if (auto& hello = joined_[static_cast<std::size_t>(rank)]; !hello)
              if ((hello = Hello::from(job.inner.read(hello_of(rank)))) && !refusal && hello->size != size_)
                refusal = control::other_size(rank, hello->size, size_);
          return refusal || missing().empty();
        },
        [&] {
          warning_(where(), [&] { return not_joined(missing()).message; });
          keep_offering(job);
          refusal = trouble_in(job);
          return refusal.has_value();
        });
    if (end == WaitEnd::expired) return not_joined(missing());
    return refusal;
  }
  [[nodiscard]] std::vector<int> missing() const {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < joined_.size(); ++rank)
      if (!joined_[rank]) ranks.push_back(static_cast<int>(rank));
    return ranks;
  }
  /// Looks for what another rank reports, for a rank beyond the last, and for a rank that joined and exited.
  [[nodiscard]] std::optional<SentError> trouble_in(const Membership& job) const {
    if (auto report = job.inner.read("trouble")) return SentError{'c', -1, std::move(*report)};
    for (const auto& name : job.inner.names()) {
      int rank = 0;
      if (name.starts_with("hello-") && std::istringstream(name.substr(6)) >> rank && rank >= size_)
        if (const auto hello = Hello::from(job.inner.read(name)); hello && hello->size != size_)
          return control::other_size(rank, hello->size, size_);
    }
    for (std::size_t rank = 1; rank < joined_.size(); ++rank)
      if (joined_[rank] && has_ended(joined_[rank]->process, mine_.process))
        return control::exited_early(static_cast<int>(rank), size_, joined_[rank]->process);
    return std::nullopt;
  }
  /// Another rank 0 may have replaced the offer by its own; a user may have removed it.
  void keep_offering(const Membership& job) const {
    const auto run = Hello::from(job.outer.read("run"));
    if (!run)
      job.outer.put("run", mine_.text());
    else if (run->word != mine_.word)
      throw ConnectError("another process with rank 0 (" + run->process.to_string() + ") uses folder '" +
                             path_.string() +
                             "': give every process a different DISTX_RANK, and every job a different DISTX_FILE",
                         where());
  }
  void withdraw(const Membership& job) const noexcept try {
    if (const auto run = Hello::from(job.outer.read("run")); run && run->word == mine_.word) job.outer.remove("run");
  } catch (...) {  // what bears the name is not ours
  }

  // ---- The other ranks ----

  Membership join() {
    std::optional<Membership> job;  // that this rank has answered
    bool refused = false;
    try {
      return join_in(job, refused);
    } catch (const Error& error) {
      if (job && !refused) report(job->inner, "rank " + std::to_string(rank_) + " gave up: " + error.message());
      if (job) leave(*job);
      throw;
    }
  }
  Membership join_in(std::optional<Membership>& job, bool& refused) {
    std::optional<Folder> outer;
    std::optional<Hello> root;  // that this rank has answered
    const auto joined = [&] { return job && has_joined(*job, refused); };
    const auto end = poll_until(
        deadline_,
        [&] {
          if (joined()) return true;
          if (!twin_.empty() && !job->inner.has("trouble")) throw ConnectError(twin_, where());
          if (!outer && !(outer = Folder::open(path_))) return false;
          const auto offered = Hello::from(outer->read("run"));
          if (offered && (!root || root->word != offered->word) && !has_ended(offered->process, mine_.process)) {
            auto answered = answer(*offered);
            if (!answered) return false;
            if (job) leave(*job);
            job = std::move(answered);
            root = offered;
          }
          return false;
        },
        [&] {
          if (!root)
            warning_(where(), [&] { return not_joined({0}).message; });  // rank 0 says which others are missing
          if (root && has_ended(root->process, mine_.process) && !joined())
            control::exited_early(0, size_, root->process).raise(where());
          return false;
        });
    if (end == WaitEnd::ready) return std::move(*job);
    if (!twin_.empty()) throw ConnectError(twin_, where());
    std::vector<int> absent;
    for (int rank = 0; job && rank < size_; ++rank)
      if (!job->inner.has(hello_of(rank))) absent.push_back(rank);
    if (absent.empty()) absent.push_back(0);  // it has not offered its folder, or not confirmed the others
    not_joined(absent).raise(where());
  }
  /// Answers rank 0's offer; nullopt if its folder is gone.
  std::optional<Membership> answer(const Hello& root) {
    twin_.clear();
    auto outer = Folder::open(path_);
    auto inner = outer ? outer->inside(folder_of(root.word)) : std::nullopt;
    if (!inner || !inner->has(hello_of(0))) return std::nullopt;
    try {
      if (!inner->put_first(hello_of(rank_), mine_.text()))
        if (const auto other = Hello::from(inner->read(hello_of(rank_))); other && other->word != mine_.word) {
          // Rank 0 reads of it and refuses all. If it does not, its job is an earlier one, on another host.
          twin_ = control::twins(rank_, other->process, mine_.process).message;
          report(*inner, twin_);
        }
    } catch (const ConnectError&) {
      if (inner->has(hello_of(0))) throw;
      return std::nullopt;
    }
    return Membership{std::move(*outer), folder_of(root.word), std::move(*inner), {}, root.made_outer};
  }
  /// Tells rank 0 why the ranks cannot work together.
  void report(const Folder& inner, const std::string& message) const noexcept try {
    (void)inner.put_first("trouble", message);
  } catch (...) {  // it has a deadline
  }
  /// Returns whether rank 0 has repeated this rank's word.
  bool has_joined(Membership& job, bool& refused) const {
    if (const auto refusal = job.inner.read(refusal_file)) {
      refused = true;
      SentError::from({control::FrameKind::refuse, *refusal}).raise(where());
    }
    const auto generation = Generation::from(job.inner.read(members_file));
    if (generation.rank_of(mine_.word) != rank_) return false;
    job.ranks = generation.processes();
    return true;
  }

  std::filesystem::path path_;
  int rank_;
  int size_;
  Timeout timeout_;
  Deadline deadline_;
  EarlyWarning warning_{timeout_};
  Hello mine_{posix::random_name(32), size_, false, this_process()};
  std::vector<std::optional<Hello>> joined_;  ///< by rank
  std::string twin_;                          ///< the message about another process of this rank, if there is one
};

}  // namespace distx::inline DISTX_ABI::detail::file
