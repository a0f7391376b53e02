// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/control/group.hpp"
#include "distx/connect/file/detail/generation.hpp"

namespace distx::inline DISTX_ABI::detail::file {

using control::FrameKind;
using control::RankEnd;
using control::time_point;

/// The transport of a rank in a folder, where each rank has a root: it writes the frames that it submits to files and
/// reads those of the others, so the loss of any rank ends nothing.
///
/// Roots complete calls by the same parts. Where the time decides, which failure is the first and which ranks continue,
/// the first writer of a file decides for all. A call that a rank entered before it failed may succeed on some ranks
/// only.
///
/// A rank that enters call n has read all of call n - 1, so each removes its own file of call n - 1 once all have
/// entered n.
class FileTransport final : public control::ControlTransport, control::ControlRoot {
 public:
  explicit FileTransport(Membership job) : ControlRoot("file", 0, false), job_(std::move(job)) {
    inbox.rank = job_.rank;
    ranks_ = records_of(job_.ranks);
    group_ = static_cast<std::uint64_t>(job_.generation);  // as the roots of the ranks that have been in all groups
    welcome();
  }

  void prepare(std::string_view call) override {
    const std::lock_guard lock(mutex_);
    candidates_.clear();
    if (inbox.rank == 0 && call == control::grow_call) candidates_ = candidates_in(job_.outer, self().process);
  }
  void submit(Frame frame) override {
    const std::lock_guard lock(mutex_);
    if (frame.kind == FrameKind::call) {
      if (!candidates_.empty()) frame.bytes = "1";  // for the others, which do not look for them
      remove_earlier();
      earlier_ = std::exchange(own_, job_.file(call_file(++calls_, inbox.rank)));
      awaited_ = 0;
      if (size() > 1) folder().put(own_, control::text_of(frame));
    }
    if (frame.kind == FrameKind::shrink) {
      folder().put(job_.file(shrink_file(inbox.rank)), control::text_of(frame));
      self().part.reset();
    }
    if (frame.kind == FrameKind::notify) {
      (void)folder().put_first(job_.file(reason_file(frame.identity)), control::text_of(frame));
      return read_reason(frame.identity);
    }
    if (!take(inbox.rank, std::move(frame))) inbox.lose(out_of_order);
  }
  void leave(bool unwinding, bool, const Timeout&) override {
    const std::lock_guard lock(mutex_);
    const int rank = inbox.rank;
    if (unwinding) report(RankEnd::threw, rank, control::destroyed(name(rank), RankEnd::threw));
    folder().put(job_.file(left_file(rank)), {});
    if (state_of(folder(), self().process) != JobState::running) job_.remove();
  }
  time_point receive(std::chrono::microseconds pause) override {
    const std::lock_guard lock(mutex_);
    const auto now = Deadline::clock::now();
    const bool is_long = pause > std::chrono::microseconds(500), is_over = now >= next_end();
    if (self().part) receive_call(is_long);
    if (self().shrink_limit) enter_next();
    if (is_over || (is_long && self().shrink_limit)) {
      read_failure();
      for (int other = 0; other < size(); ++other) look_at(other);
    }
    expire(now);
    return std::min(now + pause, next_end());
  }
  void look_for(std::uint64_t identity) override try {
    const std::lock_guard lock(mutex_);
    read_reason(identity);
    // For callers that poll without a pause: to look at every process costs more than to look for one file.
    if (!next_look_.expired()) return;
    read_failure();
    for (int other = 0; other < size(); ++other) look_at_process(other);
    next_look_ = Deadline(std::chrono::milliseconds(5));
  } catch (const ConnectError& error) {
    inbox.note_own(identity, error.message());  // without the folder no rank can reach the others
  }

 private:
  static std::string call_file(std::uint64_t call, int rank) {
    return "call-" + std::to_string(call) + "-" + std::to_string(rank);
  }
  static std::string reason_file(std::uint64_t identity) { return "reason-" + std::to_string(identity); }
  static constexpr const char* next_file = "next";  // the decision on the next generation; the first one stays
  static constexpr const char* failure_file = "failure";
  static std::string shrink_file(int rank) { return "survives-" + std::to_string(rank); }
  [[nodiscard]] const Folder& folder() const noexcept { return job_.inner; }
  /// Returns the frame in a file; one of no kind if it is malformed, null if there is none.
  [[nodiscard]] std::optional<Frame> read_frame(const std::string& name) const {
    const auto text = folder().read(job_.file(name));
    return text ? std::optional(control::frame_from(*text)) : std::nullopt;
  }
  [[nodiscard]] control::RankRecord& self() noexcept { return record(inbox.rank); }

  [[nodiscard]] std::vector<control::RankRecord> records_of(const Generation& generation) {
    std::vector<control::RankRecord> records;
    for (const auto& member : generation)
      records.push_back({.presence = control::RankRecord::Presence::here, .process = member.process});
    records[static_cast<std::size_t>(inbox.rank)].channel = &inbox;
    return records;
  }

  void receive_call(bool is_long) {
    // The others are read one after the other, so that a wait looks for one file.
    for (; self().part && awaited_ < size(); ++awaited_)
      if (!has_part(awaited_)) break;
    if (awaited_ == size() && self().part) {  // of `grow`
      settle_call();
      if (self().part) enter_next();
    }
    if (!self().part) return remove_earlier();
    if (!is_long) return;
    read_failure();
    look_at(awaited_ % size());
    // Of many ranks a few in turn, so that all ranks together do not examine more than a few ranks would.
    constexpr int most_together = 64;
    for (int left = std::clamp(most_together / size(), 1, size()); left > 0; --left)
      look_at_process(
          static_cast<int>((static_cast<unsigned>(inbox.rank) + ++examined_) % static_cast<unsigned>(size())));
  }
  /// Removes this rank's file of a call that all ranks have completed.
  void remove_earlier() {
    if (!earlier_.empty()) folder().remove(std::exchange(earlier_, {}));
  }
  /// Reads another rank's part of the current call; returns whether there is one.
  bool has_part(int other) {
    if (record(other).part) return true;
    const auto part = self().part && record(other).is_here() ? read_frame(call_file(calls_, other)) : std::nullopt;
    if (part && !take(other, *part))
      throw ConnectError("the file of rank " + std::to_string(other) +
                             " is truncated: the folder must be on a file system that shows files whole once they are "
                             "renamed",
                         {.operation = "connect", .backend = "file"});
    return part.has_value();
  }
  void read_reason(std::uint64_t identity) {
    if (const auto reason = read_frame(reason_file(identity))) (void)take(inbox.rank, *reason);
  }

  /// Looks whether the process of another rank has ended, which takes no file if it is one of another host.
  void look_at_process(int other) {
    if (record(other).is_here() && has_ended(record(other).process, self().process)) look_at(other);
  }
  /// Looks whether another rank has ended or is in `shrink`.
  void look_at(int other) {
    if (other == inbox.rank || !record(other).is_here()) return;
    const bool is_over = has_ended(record(other).process, self().process);  // first: it may leave, and then exit
    const bool left = folder().has(job_.file(left_file(other))), exited = is_over && !left;
    const auto message = name_and_process(other) + " exited unexpectedly";
    if (exited) report(RankEnd::exited, other, message);  // also for the ranks of other hosts, which do not see it
    (void)has_part(other);                                // it may have entered the call before it ended
    if (exited) read_failure();
    if (!record(other).is_here()) return;
    if (left) return end(other, RankEnd::left, control::destroyed(name(other), RankEnd::left));
    if (exited) return end(other, RankEnd::exited, message);
    if (record(other).shrink_limit) return;
    if (const auto asks = read_frame(shrink_file(other))) (void)take(other, *asks);
  }
  void read_failure() {
    auto failure = read_frame(failure_file);
    if (!failure) return;
    const bool has_failed = failure->end == RankEnd::threw || failure->end == RankEnd::exited;
    if (failure->kind != FrameKind::ended || !has_failed || failure->rank < 0 || failure->rank >= size())
      failure = {{.end = RankEnd::threw, .rank = inbox.rank == 0 ? size() - 1 : 0},
                 "a rank failed, and '" + (folder().path() / job_.file(failure_file)).string() + "' does not say why"};
    if (failure->rank == inbox.rank) return;
    (void)has_part(failure->rank);
    end(failure->rank, failure->end, failure->text);
  }
  void report(RankEnd how, int rank, const std::string& message) const {
    folder().try_put_first(job_.file(failure_file), control::text_of(control::end_of(rank, how, message)));
  }

  /// Rank 0 decides on the larger group. If it ends before, `shrink` decides; if it ends thereafter, `shrink` returns
  /// that group.
  std::optional<Frame> grow(Frame result) override {
    if (result.bytes.empty()) return result;
    const auto is_decided = [&] { return folder().has(job_.file(next_file)); };
    if (inbox.rank == 0 && !is_decided()) decide(true);  // once: a process that joined has removed its answer
    if (is_decided()) return std::nullopt;               // `receive` enters it
    if (!record(0).is_here()) return control::failed_by(*first_end_);
    if (record(0).shrink_limit) return control::failed_by_shrink(name(0));
    return std::nullopt;
  }
  /// The first rank that finds all others in `shrink` or ended, or the deadline over, decides for all.
  bool may_shrink() override {
    if (self().shrink_limit) decide(false);
    return false;
  }
  /// Decides on the next generation, unless another rank has done so before.
  void decide(bool on_larger) {
    Generation next;
    for (int rank = 0; rank < size(); ++rank)
      if (on_larger || record(rank).survives()) next.push_back({std::to_string(rank), record(rank).process});
    const auto answer = Member{job_.name, self().process, job_.generation + 1}.text();
    if (on_larger)
      for (const auto& one : candidates_)
        if (job_.outer.put_first(answer_file(one.who), answer)) next.push_back(one);
    (void)folder().put_first(job_.file(next_file), text_of(next));
  }
  /// Enters the generation on which a rank has decided, if one has.
  void enter_next() {
    const auto text = folder().read(job_.file(next_file));
    if (!text) return;
    const auto next = generation_from(text);
    const int rank = rank_of(std::to_string(inbox.rank), next);
    if (rank < 0) {
      const auto reason = left_behind(control::timeout_of(self().shrink_limit.value_or(0)), {}).message();
      return inbox.deliver(control::refusal(reason));
    }
    const auto left = job_.file(left_file(inbox.rank));
    ++job_.generation;
    folder().put(job_.file(members_file), *text);
    folder().put(left, {});
    inbox.rank = rank;
    calls_ = 0;
    replace(records_of(next));
  }

  std::mutex mutex_;
  Membership job_;
  std::vector<Member> candidates_{};  ///< rank 0 only
  std::uint64_t calls_ = 0;
  std::string own_;      ///< the file of this rank's last call
  std::string earlier_;  ///< that of the call before, until all have entered the last one
  int awaited_ = 0;      ///< the first rank whose part of the call is not known
  unsigned examined_ = 0;
  Deadline next_look_{std::chrono::milliseconds(0)};
};

/// Returns the group of a rank.
[[nodiscard]] inline std::shared_ptr<control::ControlGroup> group_of(Membership job, const Timeout& deadline) {
  auto transport = std::make_shared<FileTransport>(std::move(job));
  const auto group = transport->inbox.await(control::Awaited::group, time_point::max(), {});
  return make_here<control::ControlGroup>("file", deadline, *group, std::move(transport));
}

}  // namespace distx::inline DISTX_ABI::detail::file
