// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <utility>

#include "distx/connect/tcp/detail/calls.hpp"
#include "distx/connect/tcp/detail/connection.hpp"
#include "distx/connect/tcp/detail/handshake.hpp"

// What rank 0 keeps of each connection and each rank. See Hub.
namespace distx::detail::tcp {

using HubTime = Deadline::clock::time_point;

struct HubConnection {
  enum class Stage : std::uint8_t { challenged, proven, waiting, joined, closing };

  explicit HubConnection(Descriptor accepted) : socket(std::move(accepted)) {}
  BufferedSocket socket;
  Stage stage = Stage::challenged;
  int rank = -1;
  Process process;  ///< while it waits to be admitted
  Digest nonce{};
  HubTime end{};
};

struct RankRecord {
  enum class Presence : std::uint8_t { absent, here, over };

  Presence presence = Presence::absent;
  HubConnection* connection = nullptr;
  Process process{};
  std::optional<CallPart> part{};
  HubTime part_end{};
  bool expired = false;                         ///< it has been notified that its call timed out
  bool refused = false;                         ///< it has been notified that the ranks cannot be connected
  std::optional<std::uint64_t> shrink_limit{};  ///< it has entered `shrink`
  HubTime shrink_end{};
};

/// Returns why a rank cannot join these ranks; null if it can.
[[nodiscard]] inline std::optional<SentError> disagreement(const std::vector<RankRecord>& ranks, int rank,
                                                           int their_size, const Process& process) {
  const auto size = static_cast<int>(ranks.size());
  if (their_size != size)
    return SentError{'c', -1,
                     "rank " + std::to_string(rank) + " expects " + std::to_string(their_size) + " ranks, rank 0 " +
                         std::to_string(size) + ": start every rank with the same size"};
  if (rank >= size)
    return SentError{'c', -1,
                     "invalid rank " + std::to_string(rank) + " (" + process.to_string() + "): must be in [0, " +
                         std::to_string(size) + ")"};
  const auto& known = ranks[static_cast<std::size_t>(rank)];
  if (known.presence != RankRecord::Presence::absent)
    return SentError{'c', -1,
                     "two processes have rank " + std::to_string(rank) + " (" + known.process.to_string() + " and " +
                         process.to_string() + "): give every process a different rank"};
  return std::nullopt;
}

/// Returns the error of a job whose ranks have not all joined in time.
/// @param wrong_tokens  the number of connections that did not prove the token
[[nodiscard]] inline SentError not_joined(const std::vector<RankRecord>& ranks, const Timeout& limit,
                                          const Endpoint& endpoint, std::size_t wrong_tokens) {
  std::vector<int> missing;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (ranks[rank].presence == RankRecord::Presence::absent) missing.push_back(static_cast<int>(rank));
  auto message = "timed out after " + limit.to_string() + ": " + name_ranks(missing, static_cast<int>(ranks.size())) +
                 " did not join at " + endpoint.to_string();
  if (wrong_tokens > 0)
    message += "; " + std::to_string(wrong_tokens) + (wrong_tokens == 1 ? " connection" : " connections") +
               " had another token: set the same DISTX_TOKEN on every rank";
  return {'t', -1, std::move(message)};
}

/// Returns what a rank receives after `shrink` or `grow`: its number, and the processes of all.
[[nodiscard]] inline Frame group_of(const std::vector<RankRecord>& ranks, int rank) {
  FrameWriter out(FrameKind::regrouped);
  out.number(1).number(static_cast<std::uint64_t>(rank)).number(ranks.size());
  for (const auto& each : ranks) write_process(out, each.process);
  return out.finish();
}

/// The call that admits the processes that wait.
inline constexpr std::string_view grow_call = "grow";

/// Returns the reply to a call that all ranks have entered: its result, or that the ranks make different calls.
[[nodiscard]] inline Frame reply_to(const std::vector<RankRecord>& ranks) {
  const auto& mine = *ranks[0].part;
  for (std::size_t rank = 1; rank < ranks.size(); ++rank)
    if (ranks[rank].part->call != mine.call)
      return SentError{'m', -1,
                       "rank 0 calls " + mine.call + ", rank " + std::to_string(rank) + " " + ranks[rank].part->call}
          .frame(FrameKind::fail);
  // A rank that has given up must not be in a group of which it does not know.
  if (mine.call == grow_call && std::any_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank.expired; }))
    return SentError{'t', -1, "another rank has timed out in this call"}.frame(FrameKind::fail);
  Frame frame{FrameKind::result, {}};
  if (mine.result == CallResult::of_root) frame.body = ranks[static_cast<std::size_t>(mine.root)].part->bytes;
  if (mine.result == CallResult::of_all)
    for (const auto& rank : ranks) frame.body += rank.part->bytes;
  return frame;
}

/// Returns the reply to the current call once all ranks have entered it or one will not enter it any more; null before.
/// @param first_end  the error of the first rank that has ended
[[nodiscard]] inline std::optional<Frame> reply_now(const std::vector<RankRecord>& ranks,
                                                    const std::optional<SentError>& first_end) {
  bool all = true, over = false;
  std::string shrinks;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].part) continue;
    all = false;
    over = over || ranks[rank].presence == RankRecord::Presence::over;
    if (ranks[rank].shrink_limit) shrinks = name_ranks({static_cast<int>(rank)}, static_cast<int>(ranks.size()));
  }
  if (all) return reply_to(ranks);
  if (over) return first_end->frame(FrameKind::fail);
  if (shrinks.empty()) return std::nullopt;
  return SentError{'r', -1, shrinks + " has entered shrink and will not enter this call"}.frame(FrameKind::fail);
}

/// Returns the ranks that have entered `shrink`, as those of a new group in their order, once every other one has ended
/// or the first one's deadline is over; null before.
[[nodiscard]] inline std::optional<std::vector<RankRecord>> survivors_of(const std::vector<RankRecord>& ranks,
                                                                         HubTime now) {
  std::vector<RankRecord> survivors;
  bool complete = true, over = false;
  for (const auto& rank : ranks) {
    if (rank.presence != RankRecord::Presence::here) continue;
    complete = complete && rank.shrink_limit;
    if (!rank.shrink_limit) continue;
    over = over || now >= rank.shrink_end;
    survivors.push_back({.presence = rank.presence, .connection = rank.connection, .process = rank.process});
  }
  if (survivors.empty() || !(complete || over)) return std::nullopt;
  return survivors;
}

}  // namespace distx::detail::tcp
