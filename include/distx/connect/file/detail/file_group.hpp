// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <atomic>

#include "distx/connect/control/group.hpp"
#include "distx/connect/detail/local_failure_channel.hpp"
#include "distx/connect/file/detail/rendezvous.hpp"
#include "distx/core/detail/early_warning.hpp"

namespace distx::detail::file {

/// One rank's side of a job in a folder.
///
/// In a call each rank writes one file and reads every other rank's. A rank that enters call n has read all of call
/// n - 1, so each removes its own file of call n - 1 once all have entered n.
class FileGroup final : public control::ControlGroup {
 public:
  FileGroup(const std::filesystem::path& folder, int rank, int size, Timeout deadline)
      : FileGroup(deadline, rank, Rendezvous(folder, rank, size, deadline).meet()) {}
  /// A rank of a job whose ranks are known.
  FileGroup(Timeout deadline, int rank, Membership job)
      : ControlGroup("file", deadline, rank, job.ranks), job_(std::move(job)) {}
  ~FileGroup() override {
    if (is_unwinding()) end({'r', rank(), control::unwound(name(rank()))});
    leave();
  }

  void publish(std::uint64_t identity, const std::string& reason) noexcept override try {
    if (!is_here() || poll(identity)) return;
    if (!folder().put_first(reason_file(identity), reason)) (void)poll(identity);
    board_.publish(identity, reason);
  } catch (...) {
    board_.publish(identity, reason);  // the others have their own deadlines
  }
  [[nodiscard]] std::optional<std::string> poll(std::uint64_t identity) override {
    if (!is_here()) return std::nullopt;
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

 private:
  static std::string call_file(std::uint64_t call, int rank) {
    return "call-" + std::to_string(call) + "-" + std::to_string(rank);
  }
  static std::string reason_file(std::uint64_t identity) { return "reason-" + std::to_string(identity); }
  static constexpr const char* next_file = "next";  // the decision on the next generation; the first one stays
  static std::string shrink_file(int rank) { return "survives-" + std::to_string(rank); }
  [[nodiscard]] const Folder& folder() const noexcept { return job_.inner; }
  [[nodiscard]] const Process& process(int rank) const noexcept { return job_.ranks[static_cast<std::size_t>(rank)]; }

  /// Writes this rank's part of a call and reads all others'.
  std::string complete(control::CallPart part, const ErrorContext& context) override {
    ++calls_;
    if (size() > 1) folder().put(call_file(calls_, rank()), part.frame().body);
    std::vector<control::CallPart> all;
    all.reserve(static_cast<std::size_t>(size()));
    std::vector<const control::CallPart*> parts;
    const Deadline deadline(deadline_);
    EarlyWarning warning(deadline_);
    for (int other = 0; other < size(); ++other) {
      auto read = other == rank() ? std::optional(part)
                                  : control::CallPart::from(
                                        {control::FrameKind::call, await(other, deadline, warning, context)}, size());
      if (!read)
        throw ConnectError("the file of rank " + std::to_string(other) +
                               " is truncated: the folder must be on a file system that shows files whole once they "
                               "are renamed",
                           context);
      parts.push_back(&all.emplace_back(std::move(*read)));
    }
    if (size() > 1) folder().remove(call_file(calls_ - 1, rank()));
    return control::result_of(control::reply_to(parts), context);
  }
  /// The first rank that finds all others in `shrink` or ended, or the deadline over, decides for all, unless `grow`
  /// has been decided before.
  std::shared_ptr<ControlGroup> survivors(const Timeout& deadline, const ErrorContext& context) override {
    folder().put(shrink_file(rank()), {});
    Generation found{job_.made_outer};
    const auto decided = [&] { return folder().has(next_file); };
    (void)poll_until(Deadline(deadline), decided, [&] { return are_known(found); });
    if (!decided()) {
      (void)are_known(found);
      (void)folder().put_first(next_file, found.text());
    }
    return next(deadline, context);
  }
  bool find_candidates() override {
    candidates_ = candidates_in(job_.outer, process(rank()));
    return !candidates_.empty();
  }
  /// If rank 0 ends before it has decided, `shrink` decides; if it ends thereafter, `shrink` returns the larger group.
  std::shared_ptr<ControlGroup> enlarged(const ErrorContext& context) override {
    if (rank() == 0) admit();
    std::optional<SentError> failure;
    const auto end = poll_until(
        Deadline(deadline_), [&] { return folder().has(next_file); },
        [&] { return (failure = look_for_failure(0)).has_value(); });
    if (end == WaitEnd::stopped) failure->raise(context);
    if (end == WaitEnd::expired)
      throw TimeoutError("timed out after " + deadline_.to_string() + ": " + name(0) + " has not admitted any process",
                         context);
    return next(deadline_, context);
  }

  /// Lists the ranks that are in `shrink`; returns whether all others have ended.
  [[nodiscard]] bool are_known(Generation& found) const {
    found.members.clear();
    bool all = true;
    for (int other = 0; other < size(); ++other) {
      const bool ended = folder().has(left_file(other)) || has_ended(process(other), process(rank()));
      if (!ended && folder().has(shrink_file(other))) found.members.push_back({std::to_string(other), process(other)});
      all = all && (ended || folder().has(shrink_file(other)));
    }
    return all;
  }

  /// Decides on the next generation, and notifies the processes that it admits.
  void admit() {
    Generation found{job_.made_outer};
    for (int other = 0; other < size(); ++other) found.members.push_back({std::to_string(other), process(other)});
    const auto answer = job_.next_name() + ' ' + process(rank()).text() + '\n';
    for (const auto& [word, candidate] : candidates_)
      if (job_.outer.put_first(answer_file(word), answer)) found.members.push_back({word, candidate});
    (void)folder().put_first(next_file, found.text());  // unless the others have shrunk
  }
  /// Returns the group on which a rank has decided.
  [[nodiscard]] std::shared_ptr<ControlGroup> next(const Timeout& deadline, const ErrorContext& context) const {
    const auto generation = Generation::from(folder().read(next_file));
    const int there = generation.rank_of(std::to_string(rank()));
    if (there < 0) throw left_behind(deadline, context);
    auto outer = job_.outer.opened_again();
    if (!outer) throw ConnectError("folder '" + job_.outer.path().string() + "' was removed", context);
    const auto next_name = job_.next_name();
    auto inner = job_.outer.make_inside(next_name);
    inner.put(members_file, generation.text());
    auto earlier = job_.earlier;
    earlier.emplace_back(job_.name, job_.ranks);
    return make_here<FileGroup>(deadline_, there,
                                Membership{std::move(*outer), next_name, std::move(inner), generation.processes(),
                                           job_.made_outer, std::move(earlier)});
  }

  std::string await(int other, const Deadline& deadline, EarlyWarning& warning, const ErrorContext& context) {
    const auto file = call_file(calls_, other);
    const auto overdue = [&] {
      std::vector<int> missing;
      for (int each = 0; each < size(); ++each)
        if (each != rank() && !folder().has(call_file(calls_, each))) missing.push_back(each);
      if (missing.empty()) missing.push_back(other);
      return control::not_entered(deadline_, name_ranks(missing, size()));
    };
    bool left = false, shrinks = false;
    std::optional<SentError> failure;
    const auto end = poll_until(
        deadline, [&] { return folder().has(file); },
        [&] {
          warning(context, overdue);
          left = folder().has(left_file(other));
          shrinks = folder().has(shrink_file(other));
          return (failure = look_for_failure(other)).has_value() || left || shrinks;
        });
    if (end == WaitEnd::ready)
      if (auto text = folder().read(file)) return std::move(*text);
    if (!failure) failure = look_for_failure();
    if (failure) failure->raise(context);
    if (left) throw RankFailure(control::destroyed(name(other)), other, nullptr, context);
    if (shrinks) throw RevokedError(control::shrinks(name(other)), context);
    if (end == WaitEnd::ready)
      throw ConnectError(
          "'" + (folder().path() / file).string() + "' was removed: the folder must stay until all ranks end", context);
    throw TimeoutError(overdue(), context);
  }

  /// For callers that poll without a pause: to look at every process costs more than to look for one file.
  bool is_time_to_look() noexcept {
    const auto now = Deadline::clock::now().time_since_epoch();
    auto before = looked_.load();
    return now - before > std::chrono::milliseconds(5) && looked_.compare_exchange_strong(before, now);
  }

  /// Returns a rank that threw or whose process exited, if there is one.
  [[nodiscard]] std::optional<SentError> look_for_failure() {
    if (auto known = read_failure()) return known;
    for (int other = 0; other < size(); ++other)
      if (exited(other)) return read_failure();
    return std::nullopt;
  }
  /// The same for a rank that waits for `awaited`. Of many ranks it examines a few in turn, so that all ranks together
  /// do not examine more than a few ranks would.
  [[nodiscard]] std::optional<SentError> look_for_failure(int awaited) {
    constexpr int most_together = 64;
    if (auto known = read_failure()) return known;
    if (exited(awaited)) return read_failure();
    for (int left = std::clamp(most_together / size(), 1, size()); left > 0; --left)
      if (exited(static_cast<int>((static_cast<unsigned>(rank()) + ++examined_) % static_cast<unsigned>(size()))))
        return read_failure();
    return std::nullopt;
  }
  /// Returns whether another rank's process exited unexpectedly, and notifies the ranks of other hosts, which do not
  /// see it.
  [[nodiscard]] bool exited(int other) const {
    if (other == rank() || !has_ended(process(other), process(rank())) || folder().has(left_file(other))) return false;
    end({'f', other, name(other) + " (" + process(other).to_string() + ") exited unexpectedly"});
    return true;
  }
  [[nodiscard]] std::optional<SentError> read_failure() const {
    const auto text = folder().read("failure");
    if (!text) return std::nullopt;
    auto failure = SentError::from({control::FrameKind::fail, *text});
    if (failure.message.empty())
      failure = {'r', -1, "a rank failed, and '" + (folder().path() / "failure").string() + "' does not say why"};
    return failure;
  }
  void end(const SentError& failure) const noexcept try {
    (void)folder().put_first("failure", failure.frame(control::FrameKind::fail).body);
  } catch (...) {  // the others see the end of the process, or have their deadlines
  }

  /// The last rank to leave removes the files.
  void leave() const noexcept try {
    folder().put(left_file(rank()), {});
    if (are_left(folder(), job_.ranks, process(rank()))) job_.remove();
  } catch (...) {  // if the folder is gone, there is nothing to remove
  }

  Membership job_;
  Candidates candidates_{};  ///< rank 0 only
  std::uint64_t calls_ = 0;
  unsigned examined_ = 0;  // ranks, one after the other, by calls of this connector
  std::atomic<Deadline::clock::duration> looked_{};
  LocalFailureChannel board_;
};

}  // namespace distx::detail::file
