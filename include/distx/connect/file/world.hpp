// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <atomic>
#include <exception>

#include "distx/connect/failure_channel.hpp"
#include "distx/connect/file/meeting.hpp"

namespace distx::file {

/// What one rank does in the folder of its run: calls in step with the others, notices, its leaving.
///
/// A call writes one file and reads everybody's. A rank that has come to call n has read all of call n - 1, so that it
/// may take away what it wrote there once all have come to n.
class World final : public FailureChannel {
 public:
  World(const std::filesystem::path& folder, int rank, int size, Timeout deadline)
      : deadline_(deadline), rank_(rank), run_(Meeting(folder, rank, size, deadline).meet()), folder_(run_.folder) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() override {
    if (std::uncaught_exceptions() > uncaught_)
      end("threw", rank_, words_of(rank_) + " let the connector go while unwinding");
    leave();
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(run_.ranks.size()); }
  /// How many of the ranks before `end` are on this rank's machine.
  [[nodiscard]] int neighbours_before(int end) const noexcept {
    int count = 0;
    for (int rank = 0; rank < end; ++rank) count += process(rank_).shares_machine_with(process(rank)) ? 1 : 0;
    return count;
  }

  /// What a rank says in a call: which call, in which terms, and its bytes.
  struct Said {
    std::string sentence;
    std::string bytes;
  };
  /// Says this to all, and returns what all have said, by rank.
  [[nodiscard]] std::vector<Said> exchange(const Said& mine, const ErrorContext& context) {
    if (failed_) throw RevokedError("an earlier call of this connector has failed", context);
    failed_ = true;  // unless all have come: who did not hear the others is out of step
    ++calls_;
    if (size() > 1) folder_.put(said_in(calls_, rank_), mine.sentence + '\n' + mine.bytes);
    std::vector<Said> said;
    const Deadline deadline(deadline_);
    for (int other = 0; other < size(); ++other)
      said.push_back(other == rank_ ? mine : parted(await(other, deadline, context)));
    if (size() > 1) folder_.remove(said_in(calls_ - 1, rank_));
    failed_ = false;
    return said;
  }

  void publish(std::uint64_t identity, const std::string& reason) noexcept override try {
    if (poll(identity)) return;
    if (!folder_.put_first(notice_of(identity), reason)) (void)poll(identity);
    board_.publish(identity, reason);
  } catch (...) {
    board_.publish(identity, reason);  // the others have their own deadlines
  }
  [[nodiscard]] std::optional<std::string> poll(std::uint64_t identity) override {
    if (auto known = board_.poll(identity)) return known;
    auto told = folder_.read(notice_of(identity));
    if (!told && is_time_to_look())
      if (const auto failure = look_for_failure()) told = failure->words;
    if (told) board_.publish(identity, *told);
    return told;
  }

  [[nodiscard]] ErrorContext where(std::string_view operation) const noexcept {
    return {.operation = operation, .backend = "file", .rank = rank_, .size = size()};
  }

 private:
  struct Failure {
    std::string how;  ///< "threw" or "died"
    int rank = 0;
    std::string words;
  };

  static Said parted(const std::string& text) {
    const auto end = text.find('\n');
    return {text.substr(0, end), end == std::string::npos ? std::string() : text.substr(end + 1)};
  }
  static std::string said_in(std::uint64_t call, int rank) {
    return "call-" + std::to_string(call) + "-" + std::to_string(rank);
  }
  static std::string notice_of(std::uint64_t identity) { return "notice-" + std::to_string(identity); }
  static std::string leave_of(int rank) { return "left-" + std::to_string(rank); }
  [[nodiscard]] const Process& process(int rank) const noexcept { return run_.ranks[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::string words_of(int rank) const {
    return "rank " + std::to_string(rank) + " of " + std::to_string(size());
  }

  std::string await(int other, const Deadline& deadline, const ErrorContext& context) {
    const auto name = said_in(calls_, other);
    bool gone = false;
    std::optional<Failure> failure;
    const auto end = wait_until(
        deadline, [&] { return folder_.has(name); },
        [&] { return (failure = look_for_failure()).has_value() || (gone = folder_.has(leave_of(other))); });
    using distx::detail::WaitEnd;
    if (end == WaitEnd::ready)
      if (auto text = folder_.read(name)) return std::move(*text);
    if (!failure) failure = look_for_failure();
    if (failure && failure->how == "died") throw RankFailure(failure->words, failure->rank, nullptr, context);
    if (failure) throw RevokedError(failure->words, context);
    if (gone) throw RankFailure(words_of(other) + " has left, and will not make this call", other, nullptr, context);
    if (end == WaitEnd::ready)
      throw Error("cannot read " + (folder_.path() / name).string() + ": all ranks must be able to", context);
    std::vector<int> missing;
    for (int rank = 0; rank < size(); ++rank)
      if (rank != rank_ && !folder_.has(said_in(calls_, rank))) missing.push_back(rank);
    if (missing.empty()) missing.push_back(other);
    throw TimeoutError("after " + deadline_.to_string() + " " + of_ranks(missing, size()) + " not made this call",
                       context);
  }

  /// For those who look all the time: to look at every process costs more than to look for one file.
  bool is_time_to_look() noexcept {
    const auto now = Deadline::clock::now().time_since_epoch();
    auto before = looked_.load();
    return now - before > std::chrono::milliseconds(5) && looked_.compare_exchange_strong(before, now);
  }

  /// A rank that has ended by an exception, or by the end of its process.
  [[nodiscard]] std::optional<Failure> look_for_failure() {
    if (const auto known = read_failure()) return known;
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == rank_ || !has_ended(process(rank), process(rank_)) || folder_.has(leave_of(rank))) continue;
      // The ranks of other machines do not see it.
      end("died", rank, words_of(rank) + " (" + process(rank).to_string() + ") has ended without a word");
      return read_failure();
    }
    return std::nullopt;
  }
  [[nodiscard]] std::optional<Failure> read_failure() const {
    const auto text = folder_.read("failure");
    if (!text) return std::nullopt;
    std::istringstream in(*text);
    Failure failure;
    in >> failure.how >> failure.rank;
    in.ignore();
    std::getline(in, failure.words);
    return failure;
  }
  void end(const char* how, int rank, const std::string& words) const noexcept try {
    (void)folder_.put_first("failure", std::string(how) + ' ' + std::to_string(rank) + ' ' + words);
  } catch (...) {  // the others see the end of the process, or have their deadlines
  }

  /// The last to leave takes the files away.
  void leave() const noexcept try {
    folder_.put(leave_of(rank_), {});
    for (int rank = 0; rank < size(); ++rank)
      if (!folder_.has(leave_of(rank)) && !has_ended(process(rank), process(rank_))) return;
    std::error_code none;
    std::filesystem::remove_all(folder_.path(), none);
    if (run_.made_outer) std::filesystem::remove(folder_.path().parent_path(), none);
  } catch (...) {  // where the folder is gone, there is nothing to take away
  }

  int uncaught_ = std::uncaught_exceptions();
  Timeout deadline_;
  int rank_;
  Run run_;
  Folder folder_;
  std::uint64_t calls_ = 0;
  bool failed_ = false;
  std::atomic<Deadline::clock::duration> looked_{};
  distx::detail::LocalFailureChannel board_;
};

}  // namespace distx::file
