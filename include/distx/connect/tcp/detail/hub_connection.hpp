// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/control/root.hpp"
#include "distx/connect/tcp/detail/handshake.hpp"
#include "distx/connect/tcp/detail/transport.hpp"

// The connections of rank 0, and which ranks can join. See Hub.
namespace distx::inline DISTX_ABI::detail::tcp {

using control::Process;
using control::RankRecord;
using control::SentError;

/// One of rank 0's connections, to a rank or a stranger.
struct HubConnection final : control::RankChannel {
  enum class Stage : std::uint8_t { challenged, proven, waiting, joined, closing };
  /// The time in which a connection proves the token, in which it then says hello, and in which a rank that is not
  /// served any more closes it.
  static constexpr std::chrono::seconds introduction{10};

  explicit HubConnection(Descriptor accepted) : socket(std::move(accepted)) {}
  void deliver(const control::Frame& frame) override {
    socket.append(frame);
    socket.flush();
  }
  void dismiss() override {
    stage = Stage::closing;
    end = Deadline::clock::now() + introduction;
  }

  BufferedSocket socket;
  Stage stage = Stage::challenged;
  Process process;  ///< while it waits to be admitted
  std::string nonce;
  time_point end{};
};

/// Returns why a rank cannot join these ranks; null if it can.
[[nodiscard]] inline std::optional<SentError> disagreement(const std::vector<RankRecord>& ranks, int rank,
                                                           int their_size, const Process& process) {
  const auto size = static_cast<int>(ranks.size());
  if (their_size != size) return control::other_size(rank, their_size, size);
  if (rank >= size)
    return SentError{'c', -1,
                     "invalid rank " + std::to_string(rank) + " (" + process.to_string() + "): must be in [0, " +
                         std::to_string(size) + ")"};
  const auto& known = ranks[static_cast<std::size_t>(rank)];
  if (known.presence != RankRecord::Presence::absent) return control::twins(rank, known.process, process);
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

}  // namespace distx::inline DISTX_ABI::detail::tcp
