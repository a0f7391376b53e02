// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <atomic>
#include <exception>

#include "distx/connect/detail/local_failure_channel.hpp"
#include "distx/connect/failure_channel.hpp"
#include "distx/connect/file/detail/rendezvous.hpp"
#include "distx/connect/self.hpp"
#include "distx/core/detail/made_here.hpp"

namespace distx::detail::file {

/// One rank's side of a job in a folder: calls in step with the other ranks, failure notifications, and leaving.
///
/// In a call each rank writes one file and reads every other rank's. A rank that enters call n has read all of call
/// n - 1, so each removes its own file of call n - 1 once all have entered n.
class FileGroup final : public FailureChannel {
 public:
  FileGroup(const std::filesystem::path& folder, int rank, int size, Timeout deadline)
      : deadline_(deadline), rank_(rank), job_(Rendezvous(folder, rank, size, deadline).meet()) {}
  /// A rank of a job whose ranks are known.
  FileGroup(Timeout deadline, int rank, Membership job) : deadline_(deadline), rank_(rank), job_(std::move(job)) {}
  FileGroup(const FileGroup&) = delete;
  FileGroup& operator=(const FileGroup&) = delete;
  ~FileGroup() override {
    if (std::uncaught_exceptions() > uncaught_)
      end("threw", rank_, name_of(rank_) + " destroyed its connector while unwinding from an exception");
    leave();
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(job_.ranks.size()); }
  /// Returns how many of the ranks below `end` are on this rank's host.
  [[nodiscard]] int count_on_host(int end) const noexcept {
    int count = 0;
    for (int rank = 0; rank < end; ++rank) count += process(rank_).shares_host_with(process(rank)) ? 1 : 0;
    return count;
  }

  /// Returns a group of the ranks that enter this call. The first rank that finds all others there or ended, or the
  /// deadline over, decides for all, unless `grow` has been decided before.
  [[nodiscard]] std::shared_ptr<FileGroup> shrink(Timeout deadline) {
    const auto context = where("shrink");
    made_.check("this connector", context);
    if (std::exchange(replaced_, true)) throw replaced_before(context);
    folder().put(shrink_file(rank_), {});
    Generation found;
    const auto decided = [&] { return folder().has(next_file); };
    (void)poll_until(Deadline(deadline), decided, [&] { return are_known(found); });
    if (!decided()) {
      (void)are_known(found);
      (void)folder().put_first(next_file, found.text());
    }
    return next(deadline, context);
  }

  /// Returns the processes that wait to join.
  [[nodiscard]] Candidates candidates() const { return candidates_in(job_.outer, process(rank_)); }
  /// @throws InvalidState if `shrink` or `grow` has returned another group for this one, or in a forked process
  void check_current(const ErrorContext& context) const {
    made_.check("this connector", context);
    if (replaced_) throw replaced_before(context);
  }
  /// Returns a group of all ranks and of the processes that rank 0 admits. Collective.
  ///
  /// If rank 0 ends before it has decided, `shrink` decides; if it ends thereafter, `shrink` returns the larger group.
  [[nodiscard]] std::shared_ptr<FileGroup> grow(const Candidates& candidates, const ErrorContext& context) {
    if (rank_ == 0) admit(candidates);
    std::optional<GroupFailure> failure;
    const auto end = poll_until(
        Deadline(deadline_), [&] { return folder().has(next_file); },
        [&] { return (failure = look_for_failure(0)).has_value(); });
    if (end == WaitEnd::stopped) raise(*failure, context);
    if (end == WaitEnd::expired)
      throw TimeoutError(
          "timed out after " + deadline_.to_string() + ": " + name_of(0) + " has not admitted any process", context);
    replaced_ = true;
    return next(deadline_, context);
  }

  /// A rank's part of a call: the call as text, and its bytes.
  struct Contribution {
    std::string call;
    std::string bytes;
  };
  /// Writes this rank's contribution and returns all ranks', by rank. Collective.
  [[nodiscard]] std::vector<Contribution> exchange(const Contribution& mine, const ErrorContext& context) {
    made_.check("this connector", context);
    if (failed_) throw RevokedError("an earlier call of this connector failed", context);
    failed_ = true;  // until all have been read: else this rank is out of step
    ++calls_;
    if (size() > 1) folder().put(call_file(calls_, rank_), mine.call + '\n' + mine.bytes);
    std::vector<Contribution> all;
    const Deadline deadline(deadline_);
    for (int other = 0; other < size(); ++other)
      all.push_back(other == rank_ ? mine : parsed(await(other, deadline, context)));
    if (size() > 1) folder().remove(call_file(calls_ - 1, rank_));
    failed_ = false;
    return all;
  }

  void publish(std::uint64_t identity, const std::string& reason) noexcept override try {
    if (!made_.is_here() || poll(identity)) return;
    if (!folder().put_first(reason_file(identity), reason)) (void)poll(identity);
    board_.publish(identity, reason);
  } catch (...) {
    board_.publish(identity, reason);  // the others have their own deadlines
  }
  [[nodiscard]] std::optional<std::string> poll(std::uint64_t identity) override {
    if (!made_.is_here()) return std::nullopt;
    if (auto known = board_.poll(identity)) return known;
    std::optional<std::string> reason;
    try {
      reason = folder().read(reason_file(identity));
      if (!reason && is_time_to_look())
        if (const auto failure = look_for_failure()) reason = failure->message;
    } catch (const ConnectError& error) {
      reason = error.message();  // without the folder no rank can reach the others
    }
    if (reason) board_.publish(identity, *reason);
    return reason;
  }

  [[nodiscard]] ErrorContext where(std::string_view operation) const noexcept {
    return {.operation = operation, .backend = "file", .rank = rank_, .size = size()};
  }

 private:
  struct GroupFailure {
    std::string how;  ///< "threw" or "exited"
    int rank = -1;
    std::string message;
  };

  static Contribution parsed(const std::string& text) {
    const auto end = text.find('\n');
    return {text.substr(0, end), end == std::string::npos ? std::string() : text.substr(end + 1)};
  }
  static std::string call_file(std::uint64_t call, int rank) {
    return "call-" + std::to_string(call) + "-" + std::to_string(rank);
  }
  static std::string reason_file(std::uint64_t identity) { return "reason-" + std::to_string(identity); }
  static constexpr const char* next_file = "next";  // the decision on the next generation; the first one stays
  static std::string shrink_file(int rank) { return "survives-" + std::to_string(rank); }
  [[nodiscard]] const Folder& folder() const noexcept { return job_.inner; }
  [[nodiscard]] const Process& process(int rank) const noexcept { return job_.ranks[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::string name_of(int rank) const {
    return "rank " + std::to_string(rank) + " of " + std::to_string(size());
  }

  [[noreturn]] static void raise(const GroupFailure& failure, const ErrorContext& context) {
    if (failure.how == "exited") throw RankFailure(failure.message, failure.rank, nullptr, context);
    throw RevokedError(failure.message, context);
  }

  /// Lists the ranks that are in `shrink`; returns whether all others have ended.
  [[nodiscard]] bool are_known(Generation& found) const {
    found.members.clear();
    bool all = true;
    for (int rank = 0; rank < size(); ++rank) {
      const bool ended = folder().has(left_file(rank)) || has_ended(process(rank), process(rank_));
      if (!ended && folder().has(shrink_file(rank))) found.members.push_back({std::to_string(rank), process(rank)});
      all = all && (ended || folder().has(shrink_file(rank)));
    }
    return all;
  }

  /// Decides on the next generation, and notifies the processes that it admits.
  void admit(const Candidates& candidates) {
    Generation found;
    for (int rank = 0; rank < size(); ++rank) found.members.push_back({std::to_string(rank), process(rank)});
    const auto answer = job_.next_name() + ' ' + process(rank_).text() + '\n';
    for (const auto& [word, candidate] : candidates)
      if (job_.outer.put_first(answer_file(word), answer)) found.members.push_back({word, candidate});
    (void)folder().put_first(next_file, found.text());  // unless the others have shrunk
  }
  /// Returns the group on which a rank has decided.
  [[nodiscard]] std::shared_ptr<FileGroup> next(Timeout deadline, const ErrorContext& context) const {
    std::istringstream decision(folder().read(next_file).value_or(""));
    const auto generation = Generation::from(decision);
    const int there = generation.rank_of(std::to_string(rank_));
    if (there < 0) throw left_behind(deadline, context);
    auto outer = job_.outer.opened_again();
    if (!outer) throw ConnectError("folder '" + job_.outer.path().string() + "' was removed", context);
    const auto name = job_.next_name();
    auto inner = job_.outer.make_inside(name);
    inner.put(members_file, (job_.made_outer ? "1\n" : "0\n") + generation.text());
    auto earlier = job_.earlier;
    earlier.emplace_back(job_.name, job_.ranks);
    return make_here<FileGroup>(deadline_, there,
                                Membership{std::move(*outer), name, std::move(inner), generation.processes(),
                                           job_.made_outer, std::move(earlier)});
  }

  std::string await(int other, const Deadline& deadline, const ErrorContext& context) {
    const auto name = call_file(calls_, other);
    bool left = false, shrinks = false;
    std::optional<GroupFailure> failure;
    const auto end = poll_until(
        deadline, [&] { return folder().has(name); },
        [&] {
          left = folder().has(left_file(other));
          shrinks = folder().has(shrink_file(other));
          return (failure = look_for_failure(other)).has_value() || left || shrinks;
        });
    if (end == WaitEnd::ready)
      if (auto text = folder().read(name)) return std::move(*text);
    if (!failure) failure = look_for_failure();
    if (failure) raise(*failure, context);
    if (left)
      throw RankFailure(name_of(other) + " destroyed its connector and will not enter this call", other, nullptr,
                        context);
    if (shrinks) throw RevokedError(name_of(other) + " has entered shrink and will not enter this call", context);
    if (end == WaitEnd::ready)
      throw ConnectError("'" + (folder().path() / name).string() +
                             "' was removed: the folder must stay until all "
                             "ranks end",
                         context);
    std::vector<int> missing;
    for (int rank = 0; rank < size(); ++rank)
      if (rank != rank_ && !folder().has(call_file(calls_, rank))) missing.push_back(rank);
    if (missing.empty()) missing.push_back(other);
    throw TimeoutError(
        "timed out after " + deadline_.to_string() + ": " + name_ranks(missing, size()) + " did not enter this call",
        context);
  }

  /// For callers that poll without a pause: to look at every process costs more than to look for one file.
  bool is_time_to_look() noexcept {
    const auto now = Deadline::clock::now().time_since_epoch();
    auto before = looked_.load();
    return now - before > std::chrono::milliseconds(5) && looked_.compare_exchange_strong(before, now);
  }

  /// Returns a rank that threw or whose process exited, if there is one.
  [[nodiscard]] std::optional<GroupFailure> look_for_failure() {
    if (auto known = read_failure()) return known;
    for (int rank = 0; rank < size(); ++rank)
      if (exited(rank)) return read_failure();
    return std::nullopt;
  }
  /// The same for a rank that waits for `awaited`. Of many ranks it examines a few in turn, so that all ranks together
  /// do not examine more than a few ranks would.
  [[nodiscard]] std::optional<GroupFailure> look_for_failure(int awaited) {
    constexpr int most_together = 64;
    if (auto known = read_failure()) return known;
    if (exited(awaited)) return read_failure();
    for (int left = std::clamp(most_together / size(), 1, size()); left > 0; --left)
      if (exited(static_cast<int>((static_cast<unsigned>(rank_) + ++examined_) % static_cast<unsigned>(size()))))
        return read_failure();
    return std::nullopt;
  }
  /// Returns whether another rank's process exited unexpectedly, and notifies the ranks of other hosts, which do not
  /// see it.
  [[nodiscard]] bool exited(int rank) const {
    if (rank == rank_ || !has_ended(process(rank), process(rank_)) || folder().has(left_file(rank))) return false;
    end("exited", rank, name_of(rank) + " (" + process(rank).to_string() + ") exited unexpectedly");
    return true;
  }
  [[nodiscard]] std::optional<GroupFailure> read_failure() const {
    const auto text = folder().read("failure");
    if (!text) return std::nullopt;
    std::istringstream in(*text);
    GroupFailure failure;
    in >> failure.how >> failure.rank;
    in.ignore();
    std::getline(in, failure.message);
    if (failure.message.empty())
      failure = {"threw", -1, "a rank failed, and '" + (folder().path() / "failure").string() + "' does not say why"};
    return failure;
  }
  void end(const char* how, int rank, const std::string& message) const noexcept try {
    (void)folder().put_first("failure", std::string(how) + ' ' + std::to_string(rank) + ' ' + message);
  } catch (...) {  // the others see the end of the process, or have their deadlines
  }

  /// The last rank to leave removes the files.
  void leave() const noexcept try {
    folder().put(left_file(rank_), {});
    if (are_left(folder(), job_.ranks, process(rank_))) job_.remove();
  } catch (...) {  // if the folder is gone, there is nothing to remove
  }

  int uncaught_ = std::uncaught_exceptions();
  MadeHere made_;
  Timeout deadline_;
  int rank_;
  Membership job_;
  std::uint64_t calls_ = 0;
  bool failed_ = false;
  unsigned examined_ = 0;  // ranks, one after the other, by calls of this connector
  bool replaced_ = false;  // by the group that `shrink` or `grow` has returned
  std::atomic<Deadline::clock::duration> looked_{};
  LocalFailureChannel board_;
};

}  // namespace distx::detail::file
