// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
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
  /// @throws ConnectError if the rank or the size is invalid
  /// @throws ConnectError, TimeoutError, RankFailure: the same type on every rank if rank 0 found the error
  [[nodiscard]] Membership meet() try {
    control::check_rank(rank_, size_, "file");
    rank_ == 0 ? gather() : join();
    return std::move(*job_);
  } catch (...) {
    leave();
    throw;
  }

 private:
  // Say why the ranks cannot work together.
  static constexpr const char* refusal_file = "refused";  // rank 0's, to the others
  static constexpr const char* trouble_file = "trouble";  // the others', to rank 0
  static std::string folder_of(const std::string& word) { return "run-" + word; }
  [[nodiscard]] ErrorContext where() const noexcept {
    return {.operation = "connect", .backend = "file", .rank = rank_, .size = size_};
  }
  [[nodiscard]] Frame not_joined(const std::vector<int>& ranks) const {
    return control::not_joined(ranks, size_, timeout_, "in '" + path_.string() + "'");
  }

  /// Removes this rank's offer or answer, and the job's files if no other living rank has answered.
  void leave() const noexcept try {
    if (job_) {
      withdraw();
      if (const auto hello = Member::in(job_->inner, hello_file(rank_)); hello && hello->who == mine_.who)
        job_->inner.remove(hello_file(rank_));
      if (state_of(job_->inner, mine_.process) != JobState::running) job_->remove();
    }
    if (made_outer_) ::rmdir(path_.c_str());  // if nothing is in it
  } catch (...) {                             // the error that broke the rendezvous is reported
  }

  // ---- Rank 0 ----

  void gather() {
    make_job();
    std::optional<Frame> refusal;
    try {
      refusal = gather_answers();
    } catch (const Error& error) {
      refusal = control::refusal(error.message());
    }
    withdraw();
    if (!refusal) return;
    job_->inner.try_put_first(refusal_file, control::text_of(*refusal));
    control::raise(*refusal, where());
  }
  void make_job() {
    made_outer_ = Folder::make(path_);
    auto outer = Folder::open(path_);
    if (!outer) throw ConnectError("folder '" + path_.string() + "' was removed while the ranks joined", where());
    remove_abandoned(*outer);
    auto inner = outer->make_inside(folder_of(mine_.who));
    job_ = Membership{std::move(*outer), folder_of(mine_.who), std::move(inner)};
  }
  /// Removes the folders of jobs whose processes have all ended, as by SIGKILL, without the last one to do it. If such
  /// a job made the outer folder, this one has the duty to remove that, too.
  void remove_abandoned(const Folder& outer) {
    for (const auto& job : outer.names()) {
      const auto inner = job.starts_with("run-") ? outer.inside(job) : std::nullopt;
      if (!inner || state_of(*inner, mine_.process) != JobState::over) continue;
      made_outer_ = made_outer_ || inner->has(made_file);
      outer.remove_folder(job);
    }
  }

  /// Waits for all ranks and lists them; returns why they cannot work together, if so.
  std::optional<Frame> gather_answers() {
    joined_.resize(static_cast<std::size_t>(size_));
    joined_[0] = mine_;
    if (made_outer_) job_->inner.put(made_file, {});
    (void)job_->outer.read("run");  // throws for what is not a file, which the offer would replace
    job_->inner.put(hello_file(0), mine_.text());
    job_->outer.put("run", mine_.text());
    std::optional<Frame> refusal;
    const auto end = poll_until(
        deadline_,
        [&] {
          for (const int rank : missing())
            if (const auto& hello = joined_[static_cast<std::size_t>(rank)] = Member::in(job_->inner, hello_file(rank)))
              if (!refusal && hello->number != size_) refusal = control::other_size(rank, hello->number, size_);
          return refusal || missing().empty();
        },
        [&] {
          warning_(where(), [&] { return not_joined(missing()).text; });
          keep_offering();
          refusal = find_trouble();
          return refusal.has_value();
        });
    if (end == WaitEnd::expired) return not_joined(missing());
    if (refusal) return refusal;
    Generation all;
    for (const auto& hello : joined_) all.push_back(*hello);
    job_->inner.put(members_file, text_of(all));
    job_->ranks = std::move(all);
    return std::nullopt;
  }
  [[nodiscard]] std::vector<int> missing() const {
    return ranks_where(size_, [&](int rank) { return !joined_[static_cast<std::size_t>(rank)].has_value(); });
  }
  /// Looks for what another rank reports, for a rank beyond the last, and for a rank that joined and exited.
  [[nodiscard]] std::optional<Frame> find_trouble() const {
    if (const auto report = job_->inner.read(trouble_file)) return control::refusal(*report);
    for (const auto& name : job_->inner.names()) {
      int rank = 0;
      if (name.starts_with("hello-") && std::istringstream(name.substr(6)) >> rank && rank >= size_)
        if (const auto hello = Member::in(job_->inner, name); hello && hello->number != size_)
          return control::other_size(rank, hello->number, size_);
    }
    for (std::size_t rank = 1; rank < joined_.size(); ++rank)
      if (joined_[rank] && has_ended(joined_[rank]->process, mine_.process))
        return control::exited_early(static_cast<int>(rank), size_, joined_[rank]->process);
    return std::nullopt;
  }
  /// Another rank 0 may have replaced the offer by its own; a user may have removed it.
  void keep_offering() const {
    const auto run = Member::in(job_->outer, "run");
    if (!run)
      job_->outer.put("run", mine_.text());
    else if (run->who != mine_.who)
      throw ConnectError("another process with rank 0 (" + run->process.to_string() + ") uses folder '" +
                             path_.string() +
                             "': give every process a different DISTX_RANK, and every job a different DISTX_FILE",
                         where());
  }
  void withdraw() const noexcept try {
    if (const auto run = Member::in(job_->outer, "run"); run && run->who == mine_.who) job_->outer.remove("run");
  } catch (...) {  // what bears the name is not ours
  }

  // ---- The other ranks ----

  void join() try { await_rank_0(); } catch (const Error& error) {
    if (job_ && !job_->inner.has(refusal_file))
      job_->inner.try_put_first(trouble_file, "rank " + std::to_string(rank_) + " gave up: " + error.message());
    throw;
  }
  void await_rank_0() {
    const auto joined = [&] { return job_ && has_joined(); };
    const auto end = poll_until(
        deadline_,
        [&] {
          if (joined()) return true;
          if (!twin_.empty() && !job_->inner.has(trouble_file)) throw ConnectError(twin_, where());
          look_for_offer();
          return false;
        },
        [&] {
          if (!job_) warning_(where(), [&] { return not_joined({0}).text; });  // rank 0 says which others are missing
          if (job_ && has_ended(root_.process, mine_.process) && !joined())
            control::raise(control::exited_early(0, size_, root_.process), where());
          return false;
        });
    if (end == WaitEnd::ready) return;
    if (!twin_.empty()) throw ConnectError(twin_, where());
    auto absent = ranks_where(size_, [&](int rank) { return job_ && !job_->inner.has(hello_file(rank)); });
    if (absent.empty()) absent.push_back(0);  // it has not offered its folder, or not confirmed the others
    control::raise(not_joined(absent), where());
  }
  /// Answers an offer of rank 0 that this rank has not answered.
  void look_for_offer() {
    auto outer = Folder::open(path_);
    const auto offered = outer ? Member::in(*outer, "run") : std::nullopt;
    if (!offered || (job_ && root_.who == offered->who) || has_ended(offered->process, mine_.process)) return;
    auto inner = outer->inside(folder_of(offered->who));
    if (!inner || !answer(*inner)) return;
    leave();  // the job of an earlier offer
    job_ = Membership{std::move(*outer), folder_of(offered->who), std::move(*inner), rank_};
    root_ = *offered;
  }
  /// Answers in rank 0's folder; returns false if that is gone.
  [[nodiscard]] bool answer(const Folder& inner) {
    twin_.clear();
    if (!inner.has(hello_file(0))) return false;
    try {
      if (inner.put_first(hello_file(rank_), mine_.text())) return true;
    } catch (const ConnectError&) {
      if (inner.has(hello_file(0))) throw;
      return false;
    }
    if (const auto other = Member::in(inner, hello_file(rank_)); other && other->who != mine_.who) {
      // Rank 0 reads of it and refuses all. If it does not, its job is an earlier one, on another host.
      twin_ = control::twins(rank_, other->process, mine_.process).text;
      inner.try_put_first(trouble_file, twin_);
    }
    return true;
  }
  /// Returns whether rank 0 has repeated this rank's word.
  bool has_joined() {
    if (const auto refusal = job_->inner.read(refusal_file)) control::raise(control::frame_from(*refusal), where());
    job_->ranks = generation_from(job_->inner.read(members_file));
    return rank_of(mine_.who, job_->ranks) == rank_;
  }

  std::filesystem::path path_;
  int rank_;
  int size_;
  Timeout timeout_;
  Deadline deadline_;
  EarlyWarning warning_{timeout_};
  Member mine_{posix::random_name(32), this_process(), size_};
  bool made_outer_ = false;                      ///< this rank, or a job whose files it has removed, made `path_`
  std::optional<Membership> job_{};              ///< the one that this rank has offered, or answered
  Member root_{};                                ///< whose offer this rank has answered
  std::vector<std::optional<Member>> joined_{};  ///< by rank
  std::string twin_{};                           ///< the message about another process of this rank, if there is one
};

}  // namespace distx::inline DISTX_ABI::detail::file
