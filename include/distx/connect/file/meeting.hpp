// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <vector>

#include "distx/connect/file/folder.hpp"
#include "distx/connect/file/process.hpp"
#include "distx/connect/file/wait.hpp"

namespace distx::file {

/// Where the files of one run are, and who its ranks are.
struct Run {
  std::filesystem::path folder;
  std::vector<Process> ranks;
  bool made_outer = false;  ///< whether rank 0 made the folder that `folder` is in
};

/// How ranks that know nothing but a folder find each other there.
///
/// Rank 0 makes a folder of a random name in it and writes that name in the file `run`; the others answer in that
/// folder, each with a random word, and are in once rank 0 has repeated the word in the file `together`. An earlier
/// run's files can thus be there and are never taken for this run's: they do not have the words.
class Meeting {
 public:
  Meeting(const std::filesystem::path& folder, int rank, int size, Timeout deadline)
      : outer_(folder), rank_(rank), size_(size), timeout_(deadline), deadline_(deadline) {}

  /// Collective.
  /// @throws ConnectError, TimeoutError, RankFailure
  [[nodiscard]] Run meet() { return rank_ == 0 ? gather() : join(); }

 private:
  struct Hello {
    std::string word;
    int size = 0;
    Process process;

    [[nodiscard]] static std::optional<Hello> from(const std::optional<std::string>& text) {
      Hello hello;
      if (!text || !(std::istringstream(*text) >> hello.word >> hello.size >> hello.process)) return std::nullopt;
      return hello;
    }
    [[nodiscard]] std::string text() const {
      std::ostringstream out;
      out << word << ' ' << size << ' ' << process << '\n';
      return out.str();
    }
  };
  static std::string hello_of(int rank) { return "hello-" + std::to_string(rank); }
  [[nodiscard]] Folder folder_of(const std::string& run) const { return Folder(outer_.path() / ("run-" + run)); }
  [[nodiscard]] ErrorContext where() const noexcept {
    return {.operation = "connect", .backend = "file", .rank = rank_, .size = size_};
  }
  [[nodiscard]] std::string place() const { return outer_.path().string(); }

  /// After a refusal: the last to read it takes the files away.
  void leave(const Folder& inner) const {
    if (const auto hello = Hello::from(inner.read(hello_of(rank_))); hello && hello->word == mine_.word)
      inner.remove(hello_of(rank_));
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(inner.path(), error))
      if (entry.path().filename().string().starts_with("hello-")) return;
    std::filesystem::remove_all(inner.path(), error);
  }

  // ---- Rank 0 ----

  Run gather() {
    Run run;
    std::error_code error;
    run.made_outer = std::filesystem::create_directories(outer_.path(), error);
    const Folder inner = folder_of(mine_.word);
    if (!error) std::filesystem::create_directory(inner.path(), error);
    if (error)
      throw ConnectError("cannot make the folder " + inner.path().string() + ": " + error.message(), where(),
                         error.value());
    try {
      const auto refusal = gather_in(inner);
      if (!refusal.empty()) throw ConnectError(refusal, where());
      publish(inner, {}, run.made_outer);
      withdraw();
    } catch (const Error& failure) {
      withdraw();
      publish(inner, failure.what(), run.made_outer);
      leave(inner);
      throw;
    }
    run.folder = inner.path();
    for (const auto& hello : come_) run.ranks.push_back(hello->process);
    return run;
  }

  /// Waits for all ranks, and returns why they cannot be together; empty where they can.
  std::string gather_in(const Folder& inner) {
    come_.resize(static_cast<std::size_t>(size_));
    come_[0] = mine_;
    inner.put(hello_of(0), mine_.text());
    outer_.put("run", mine_.text());
    std::string refusal;
    const auto end = wait_until(
        deadline_,
        [&] {
          for (int rank = 1; rank < size_; ++rank)
            if (auto& hello = come_[static_cast<std::size_t>(rank)]; !hello)
              if ((hello = Hello::from(inner.read(hello_of(rank)))) && refusal.empty())
                refusal = disagreement(rank, hello->size);
          return !refusal.empty() || missing().empty();
        },
        [&] {
          keep_offering();
          refusal = trouble_in(inner);
          return !refusal.empty();
        });
    if (end == distx::detail::WaitEnd::expired)
      throw TimeoutError("after " + timeout_.to_string() + " " + of_ranks(missing(), size_) + " not come to " + place(),
                         where());
    return refusal;
  }
  [[nodiscard]] std::vector<int> missing() const {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < come_.size(); ++rank)
      if (!come_[rank]) ranks.push_back(static_cast<int>(rank));
    return ranks;
  }
  [[nodiscard]] std::string disagreement(int rank, int their_size) const {
    if (their_size == size_) return {};
    return "rank " + std::to_string(rank) + " is one of " + std::to_string(their_size) + " ranks, rank 0 one of " +
           std::to_string(size_) + ": all need the same number (DISTX_SIZE)";
  }
  /// What another rank says, a rank beyond the last, a rank that has come and ended.
  [[nodiscard]] std::string trouble_in(const Folder& inner) const {
    if (auto said = inner.read("trouble")) return *said;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(inner.path(), error)) {
      const std::string name = entry.path().filename().string();
      int rank = 0;
      if (name.starts_with("hello-") && std::istringstream(name.substr(6)) >> rank && rank >= size_)
        if (const auto hello = Hello::from(inner.read(name))) return disagreement(rank, hello->size);
    }
    for (std::size_t rank = 1; rank < come_.size(); ++rank)
      if (come_[rank] && has_ended(come_[rank]->process, mine_.process))
        throw RankFailure("rank " + std::to_string(rank) + " (" + come_[rank]->process.to_string() +
                              ") has ended before all ranks had come",
                          static_cast<int>(rank), nullptr, where());
    return {};
  }
  /// Another rank 0 may have replaced this run by its own; whoever has cleaned up may have taken it away.
  void keep_offering() const {
    const auto run = Hello::from(outer_.read("run"));
    if (!run)
      outer_.put("run", mine_.text());
    else if (run->word != mine_.word)
      throw ConnectError("another rank 0 (" + run->process.to_string() + ") has come to " + place() +
                             ": every rank needs a number of its own (DISTX_RANK), and every run a folder of its own "
                             "(DISTX_FILE)",
                         where());
  }
  void withdraw() const {
    if (const auto run = Hello::from(outer_.read("run")); run && run->word == mine_.word) outer_.remove("run");
  }
  void publish(const Folder& inner, const std::string& refusal, bool made_outer) const {
    std::ostringstream out;
    out << made_outer << ' ' << come_.size() << '\n';
    for (const auto& hello : come_) out << (hello ? hello->text() : "- 0 - - - 0 0\n");
    out << refusal;
    inner.put("together", out.str());
  }

  // ---- The others ----

  Run join() {
    Run run;
    std::optional<Hello> root;  // that this rank has answered
    const auto end = wait_until(
        deadline_,
        [&] {
          const auto offered = Hello::from(outer_.read("run"));
          if (root && is_in(folder_of(root->word), run)) return true;
          if (root && !twin_.empty() && !folder_of(root->word).has("trouble")) throw ConnectError(twin_, where());
          if (offered && (!root || root->word != offered->word) && !has_ended(offered->process, mine_.process) &&
              answer(folder_of(offered->word)))
            root = offered;
          return false;
        },
        [&] {
          if (root && has_ended(root->process, mine_.process) && !is_in(folder_of(root->word), run))
            throw RankFailure("rank 0 (" + root->process.to_string() + ") has ended before all ranks had come", 0,
                              nullptr, where());
          return false;
        });
    if (end == distx::detail::WaitEnd::ready) return run;
    if (!twin_.empty()) throw ConnectError(twin_, where());
    if (!root) throw TimeoutError("after " + timeout_.to_string() + " rank 0 has not come to " + place(), where());
    std::vector<int> absent;
    for (int rank = 0; rank < size_; ++rank)
      if (!folder_of(root->word).has(hello_of(rank))) absent.push_back(rank);
    throw TimeoutError("after " + timeout_.to_string() + " " +
                           (absent.empty() ? "rank 0 has not said that all are there, in "
                                           : of_ranks(absent, size_) + " not come to ") +
                           place(),
                       where());
  }
  /// Whether this rank could: the run may have ended meanwhile.
  bool answer(const Folder& inner) try {
    twin_.clear();
    if (!inner.has(hello_of(0))) return false;
    if (inner.put_first(hello_of(rank_), mine_.text())) return true;
    const auto other = Hello::from(inner.read(hello_of(rank_)));
    if (!other || other->word == mine_.word) return true;
    // Rank 0 reads of it and refuses all. Where it does not, its run is an earlier one, whose end nobody here saw.
    twin_ = "rank " + std::to_string(rank_) + " is there twice (" + other->process.to_string() + " and " +
            mine_.process.to_string() + "): every rank needs a number of its own (DISTX_RANK)";
    (void)inner.put_first("trouble", twin_);
    return true;
  } catch (const ConnectError&) {
    if (inner.has(hello_of(0))) throw;
    return false;
  }
  /// Whether rank 0 has repeated this rank's word.
  bool is_in(const Folder& inner, Run& run) const {
    const auto text = inner.read("together");
    if (!text) return false;
    std::istringstream in(*text);
    std::size_t count = 0;
    if (!(in >> run.made_outer >> count)) return false;
    std::vector<Hello> all(count);
    for (auto& hello : all) in >> hello.word >> hello.size >> hello.process;
    in.ignore();
    std::string refusal;
    std::getline(in, refusal);
    if (!refusal.empty()) {
      leave(inner);
      throw ConnectError(refusal, where());
    }
    if (rank_ >= static_cast<int>(count) || all[static_cast<std::size_t>(rank_)].word != mine_.word) return false;
    run.folder = inner.path();
    run.ranks.clear();
    for (const auto& hello : all) run.ranks.push_back(hello.process);
    return true;
  }

  Folder outer_;
  int rank_;
  int size_;
  Timeout timeout_;
  Deadline deadline_;
  Hello mine_{random_name(), size_, this_process()};
  std::vector<std::optional<Hello>> come_;  ///< by rank
  std::string twin_;                        ///< what to say of another process that is there as this rank
};

}  // namespace distx::file
