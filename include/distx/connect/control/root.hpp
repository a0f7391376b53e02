// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "distx/connect/control/inbox.hpp"
#include "distx/connect/self.hpp"
#include "distx/core/detail/early_warning.hpp"
#include "distx/core/detail/revocation_reason.hpp"

namespace distx::inline DISTX_ABI::detail::control {

/// A rank, as the root knows it.
struct RankRecord {
  enum class Presence : std::uint8_t {
    absent,
    here,
    over  ///< it has ended, or was refused before it joined
  };

  Presence presence = Presence::absent;
  RankChannel* channel = nullptr;  ///< null while the rank cannot be reached
  Process process{};
  std::optional<Frame> part{};  ///< of the present call
  time_point part_end{};
  bool expired = false;                        ///< it has been notified that its call timed out
  std::optional<std::int64_t> shrink_limit{};  ///< it has entered `shrink`
  time_point shrink_end{};

  [[nodiscard]] bool is_here() const noexcept { return presence == Presence::here; }
  /// Returns whether it has entered `shrink`.
  [[nodiscard]] bool survives() const noexcept { return is_here() && shrink_limit; }
  /// Returns whether it is to be notified of the end of a call.
  [[nodiscard]] bool is_waiting() const noexcept { return part && !expired && channel != nullptr; }
};

/// Says that no rank can continue, because rank 0 does not.
[[nodiscard]] inline std::string without_root(const std::string& problem) {
  return "rank 0 serves the other ranks, which cannot continue without it (" + problem +
         "): restart all ranks from the last checkpoint";
}

/// Where the ranks of a connector meet: completes calls, keeps deadlines, passes failures on, and makes the groups
/// after `shrink` and `grow`.
///
/// It does not communicate and has no thread: a transport passes on the frames and ends of ranks, one after another,
/// and calls `expire` at `next_end`.
class ControlRoot {
 protected:
  /// @param rank_0_serves  whether the others need rank 0, so that none can continue without it
  ControlRoot(std::string_view backend, int size, bool rank_0_serves)
      : backend_(backend), rank_0_serves_(rank_0_serves), ranks_(static_cast<std::size_t>(size)) {
    if (EarlyWarning::is_on()) warning_.emplace(no_timeout);  // asked on the caller's thread
  }
  ~ControlRoot() = default;

  /// Makes the group of a call of `grow` that all ranks have entered, if processes wait to join. Returns the reply if
  /// there is no such group; null if it has announced one, or waits for the decision.
  [[nodiscard]] virtual std::optional<Frame> grow(Frame result) { return result; }
  /// Returns whether the ranks that have entered `shrink` may continue now.
  [[nodiscard]] virtual bool may_shrink() { return true; }

  [[nodiscard]] int size() const noexcept { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] RankRecord& record(int rank) noexcept { return ranks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::string name(int rank) const { return name_of(rank, size()); }
  [[nodiscard]] std::string name_and_process(int rank) {
    return name(rank) + " (" + record(rank).process.to_string() + ")";
  }
  /// Returns whether a rank may not enter the calls of the others any more.
  [[nodiscard]] bool is_in_error() const noexcept { return refused_ || has_failure() || timed_out_ || is_notified_; }
  /// Returns whether a rank has failed, of which the first is then `first_end_`.
  [[nodiscard]] bool has_failure() const noexcept { return first_end_ && first_end_->end != RankEnd::left; }

  void send(int rank, const Frame& frame) {
    if (auto* channel = record(rank).channel) channel->deliver(frame);
  }
  /// Rank 0 is the last: its process may end as soon as it has the frame.
  void send_all(const Frame& frame) {
    for (int rank = size() - 1; rank >= 0; --rank) send(rank, frame);
  }

  /// Notes that all ranks have joined.
  void welcome() {
    joined_ = true;
    announce_group();
  }
  /// Notifies the ranks that they cannot be connected.
  void refuse(Frame refusal) {
    refused_ = std::move(refusal);
    send_all(*refused_);
  }

  /// Takes a frame of a rank that has joined; returns false if it is malformed or out of order.
  [[nodiscard]] bool take(int rank, Frame frame) {
    auto& caller = record(rank);
    switch (frame.kind) {
      case FrameKind::call:
        if (caller.part || !joined_ || !caller.is_here()) return false;
        if (warning_ && std::ranges::none_of(ranks_, [](const auto& each) { return each.part.has_value(); }))
          warning_.emplace(timeout_of(frame.limit));
        caller.part_end = Deadline(timeout_of(frame.limit)).end();
        caller.part = std::move(frame);
        caller.expired = false;
        settle_call();
        return true;
      case FrameKind::notify:
        // Of a mismatch all ranks are notified, so all can continue.
        is_notified_ = is_notified_ || !RevocationReason::on_all_ranks(RevocationReason::mark_of(frame.text));
        if (published_.insert(frame.identity).second) send_all(frame);
        return true;
      case FrameKind::shrink:
        // A rank that has given up the call of `grow` may not know yet of the larger group, which is its answer.
        if (frame.identity != group_) return true;
        if (!joined_ || !caller.is_here() || caller.shrink_limit) return false;
        caller.shrink_limit = frame.limit;
        caller.shrink_end = Deadline(timeout_of(frame.limit)).end();
        settle_call();
        settle_shrink(Deadline::clock::now());
        return true;
      case FrameKind::leave:
        if (frame.end > RankEnd::threw) return false;
        end(rank, frame.end, destroyed(name(rank), frame.end));
        return true;
      default:
        return false;
    }
  }
  /// Notes that a rank enters no further call.
  void end(int rank, RankEnd how, const std::string& message) {
    auto& ended = record(rank);
    if (ended.presence == RankRecord::Presence::over) return;
    if (!joined_ && !refused_)
      refuse(how == RankEnd::exited ? exited_early(rank, size(), ended.process)
                                    : Frame{{.kind = FrameKind::refuse, .error = 'r'}, message});
    ended.presence = RankRecord::Presence::over;
    const Frame frame = end_of(rank, how, message);
    const bool first_failure = how != RankEnd::left && !has_failure();
    if (!first_end_ || first_failure) first_end_ = frame;
    // Ranks learn of further ends from their calls: a message to each rank of each end would be n^2 messages.
    if (first_failure || rank == 0) send_all(frame);
    settle_call();
    settle_shrink(Deadline::clock::now());
  }
  /// Completes the current call if all ranks have entered it, and fails it if one will not enter it any more.
  void settle_call() {
    auto frame = reply();
    if (frame && frame->kind == FrameKind::result) {
      if (ranks_[0].part->text == grow_call) frame = grow(std::move(*frame));
      is_notified_ = false;  // all ranks have joined since
    }
    if (!frame) return;
    for (int rank = size() - 1; rank >= 0; --rank) {
      auto& waiting = record(rank);
      if (!waiting.part) continue;
      if (!waiting.expired) send(rank, *frame);
      waiting.part.reset();
    }
  }
  /// Notifies the ranks of their group.
  void announce_group() {
    ++group_;
    std::map<std::string_view, int> local_sizes;
    for (const auto& rank : ranks_) ++local_sizes[rank.process.host];
    auto local_ranks = local_sizes;
    for (int rank = size() - 1; rank >= 0; --rank) {
      const auto& host = record(rank).process.host;
      const int local_rank = --local_ranks[host];
      auto* const channel = record(rank).channel;
      if (channel == nullptr) continue;
      channel->rank = rank;
      channel->deliver({{.kind = FrameKind::regrouped,
                         .rank = rank,
                         .size = size(),
                         .local_rank = local_rank,
                         .local_size = local_sizes[host],
                         .identity = group_}});
    }
    if (has_failure()) send_all(*first_end_);  // of a rank that had entered the call of `grow`
  }
  /// Continues with these ranks.
  void replace(std::vector<RankRecord> next) {
    ranks_ = std::move(next);
    first_end_.reset();
    timed_out_ = is_notified_ = false;
    announce_group();
  }
  /// Continues with the ranks that have entered `shrink`, once the others have ended or the deadline is over.
  void settle_shrink(time_point now) {
    bool complete = true, over = false;
    std::int64_t limit = no_limit;
    for (const auto& rank : ranks_) {
      complete = complete && (rank.survives() || !rank.is_here());
      over = over || (rank.survives() && now >= rank.shrink_end);
      limit = std::min(limit, rank.shrink_limit.value_or(no_limit));
    }
    if (!(complete || over) || std::ranges::none_of(ranks_, &RankRecord::survives) || !may_shrink()) return;
    const bool is_served = !rank_0_serves_ || ranks_[0].survives();
    const auto reason = is_served ? left_behind(timeout_of(limit), {}).message()
                                  : without_root("it has ended, or did not enter the call");
    const Frame give_up = refusal(reason);
    if (!is_served) {
      for (auto& rank : ranks_) rank.shrink_limit.reset();
      return send_all(give_up);
    }
    std::vector<RankRecord> next;
    for (const auto& rank : ranks_) {
      if (rank.survives())
        next.push_back({.presence = rank.presence, .channel = rank.channel, .process = rank.process});
      if (rank.survives() || rank.channel == nullptr) continue;
      if (rank.is_here()) rank.channel->deliver(give_up);
      rank.channel->rank = -1;
      rank.channel->dismiss();
    }
    replace(std::move(next));
  }
  /// Ends the waits whose deadlines are over, of the ranks that can be reached.
  void expire(time_point now) {
    settle_shrink(now);
    for (int rank = 0; rank < size(); ++rank) {
      auto& waiting = record(rank);
      if (!waiting.is_waiting()) continue;
      const auto limit = timeout_of(waiting.part->limit);
      warn(operation_of(waiting.part->text), rank, [&] { return overdue(limit); });
      if (now < waiting.part_end) continue;
      waiting.expired = true;
      timed_out_ = true;
      send(rank, {{.kind = FrameKind::fail, .error = 't'}, overdue(limit)});
    }
  }
  /// Returns when the next deadline is over.
  [[nodiscard]] time_point next_end() noexcept {
    auto next = time_point::max();
    for (const auto& rank : ranks_) {
      if (rank.is_waiting()) next = std::min({next, rank.part_end, warning_due()});
      if (rank.survives()) next = std::min(next, rank.shrink_end);
    }
    return next;
  }
  /// Returns the message of a wait for the other ranks that is over.
  [[nodiscard]] std::string overdue(const Timeout& limit) const {
    const auto missing =
        ranks_where(size(), [&](int other) { return !ranks_[static_cast<std::size_t>(other)].part.has_value(); });
    const auto text = "timed out after " + limit.to_string() + ": ";
    if (missing.empty()) return text + name(0) + " has not admitted any process";
    return text + name_ranks(missing, size()) + " did not enter this call";
  }
  [[nodiscard]] time_point warning_due() noexcept { return warning_ ? warning_->due() : time_point::max(); }
  /// Says early, for all ranks, that rank `rank` waits in the operation `what`.
  template <class Overdue>
  void warn(std::string_view what, int rank, Overdue&& message) {
    if (warning_) (*warning_)({.operation = what, .backend = backend_, .rank = rank, .size = size()}, message);
  }

 private:
  /// Returns the reply to the current call once all ranks have entered it or one will not enter it any more.
  [[nodiscard]] std::optional<Frame> reply() {
    const auto is_missing = [](const auto& rank) { return !rank.part; };
    const auto is_over = [](const auto& rank) { return !rank.part && rank.presence == RankRecord::Presence::over; };
    if (std::ranges::none_of(ranks_, is_missing)) return result();
    if (std::ranges::any_of(ranks_, is_over)) return failed_by(*first_end_);
    for (int rank = size() - 1; rank >= 0; --rank)
      if (!record(rank).part && record(rank).shrink_limit) return failed_by_shrink(name(rank));
    return std::nullopt;
  }
  /// Returns the result of the call that all ranks have entered, or why it has none.
  [[nodiscard]] Frame result() const {
    const auto& call = ranks_[0].part->text;
    Frame result{{.kind = FrameKind::result}};
    for (int rank = 0; const auto& one : ranks_) {
      if (one.part->text != call)
        return {{.kind = FrameKind::fail, .error = 'm'},
                "rank 0 calls " + call + ", rank " + std::to_string(rank) + " " + one.part->text};
      result.bytes += one.part->bytes;
      ++rank;
    }
    // A rank that has given up does not know the result, and must not be in a group that the call makes.
    if (std::ranges::any_of(ranks_, &RankRecord::expired))
      return {{.kind = FrameKind::fail, .error = 't'}, "another rank has timed out in this call"};
    return result;
  }

  std::string_view backend_;
  bool rank_0_serves_;
  std::set<std::uint64_t> published_;
  bool timed_out_ = false;
  bool is_notified_ = false;  ///< of a failure, since the last call of all ranks

 protected:
  static constexpr const char* out_of_order = "this rank has made a call out of order";
  std::vector<RankRecord> ranks_;
  std::uint64_t group_ = 0;         ///< counts the groups
  std::optional<Frame> first_end_;  ///< of the first rank that failed; if none, of the first that left
  std::optional<Frame> refused_;    ///< the ranks have been notified that they cannot be connected
  bool joined_ = false;
  std::optional<EarlyWarning> warning_{};  ///< of the wait that all ranks are in; null unless DISTX_LOG=info
};

}  // namespace distx::inline DISTX_ABI::detail::control
