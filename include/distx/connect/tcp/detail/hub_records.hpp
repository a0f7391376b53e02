// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <utility>

#include "distx/connect/tcp/detail/calls.hpp"
#include "distx/connect/tcp/detail/connection.hpp"
#include "distx/connect/tcp/detail/handshake.hpp"

// What rank 0 keeps of each connection and each rank. See Hub.
namespace distx::detail::tcp {

using HubTime = Deadline::clock::time_point;

struct HubConnection {
  enum class Stage : std::uint8_t { challenged, proven, waiting, joined, closing };

  explicit HubConnection(unique_socket accepted) : socket(std::move(accepted)) {}
  BufferedSocket socket;
  Stage stage = Stage::challenged;
  int rank = -1;
  PeerProcess process;  ///< while it waits to be admitted
  Digest nonce{};
  HubTime end{};
};

struct RankRecord {
  enum class Presence : std::uint8_t { absent, here, over };

  Presence presence = Presence::absent;
  HubConnection* connection = nullptr;
  PeerProcess process;
  std::optional<CallPart> part;
  HubTime part_end{};
  bool expired = false;                       ///< it has been notified that its call timed out
  bool refused = false;                       ///< it has been notified that the ranks cannot be connected
  std::optional<std::uint64_t> shrink_limit;  ///< it has entered `shrink`
  HubTime shrink_end{};
};

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
  Frame frame{FrameKind::result, {}};
  if (mine.result == CallResult::of_root) frame.body = ranks[static_cast<std::size_t>(mine.root)].part->bytes;
  if (mine.result == CallResult::of_all)
    for (const auto& rank : ranks) frame.body += rank.part->bytes;
  return frame;
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
    RankRecord& kept = survivors.emplace_back();
    kept.presence = rank.presence;
    kept.connection = rank.connection;
    kept.process = rank.process;
  }
  if (survivors.empty() || !(complete || over)) return std::nullopt;
  return survivors;
}

}  // namespace distx::detail::tcp
