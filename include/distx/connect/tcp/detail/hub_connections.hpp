// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <sys/resource.h>

#include <list>

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

/// Rank 0's connections that have not proven the token, in the order in which they were accepted.
///
/// Each has ten seconds to prove it. A full queue closes the oldest one for each that it accepts, so ranks are accepted
/// during a flood.
class Strangers {
 public:
  using Connection = HubConnection;

  /// Returns the connections, of which the caller may move one elsewhere.
  [[nodiscard]] std::list<Connection>& all() noexcept { return all_; }
  [[nodiscard]] bool may_accept(time_point now) const { return now >= listen_again_; }
  /// Returns when `expire` or the listening socket, if `now` is too early for it, is to be looked at again.
  [[nodiscard]] time_point next_end(time_point now) const {
    const auto oldest = all_.empty() ? time_point::max() : all_.front().end;
    return may_accept(now) ? oldest : std::min(oldest, listen_again_);
  }
  void expire(time_point now) {
    while (!all_.empty() && now >= all_.front().end) all_.pop_front();
  }

  /// Accepts and challenges a part of the connections that the queue can take, so that the ranks have their turn. Does
  /// not change the queue.
  [[nodiscard]] std::list<Connection> accept_some(const Listener& listener) {
    std::list<Connection> accepted;
    for (std::size_t left = std::min(std::size_t{64}, limit_ / 4); left > 0; --left) {
      Connection connection(Descriptor::from_native_handle(
          ::accept4(listener.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
      if (!connection.socket.is_open()) {
        lacks_descriptors_ = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        break;
      }
      // A rank does not send anything before it is challenged; most connections of a flood are closed by now.
      if (connection.socket.receive(1) != 0 || !connection.socket.received().empty()) continue;
      connection.nonce = random_nonce();
      connection.end = Deadline::clock::now() + Connection::introduction;
      connection.socket.append(greeting(connection.nonce));
      connection.socket.flush();
      accepted.push_back(std::move(connection));
    }
    return accepted;
  }
  /// Adds connections, and closes the oldest ones beyond the limit.
  void admit(std::list<Connection> accepted, std::size_t absent_ranks) {
    if (!accepted.empty()) {
      const auto strangers = all_.size() + accepted.size();
      // The system gives the lowest free descriptor, so all below are in use.
      const auto in_use = static_cast<std::size_t>(accepted.back().socket.native_handle()) + 1;
      limit_ = limit_of(in_use - std::min(in_use, strangers), absent_ranks);
    }
    all_.splice(all_.end(), accepted);
    std::size_t closed = 0;
    for (; all_.size() > limit_ || (lacks_descriptors_ && closed == 0 && !all_.empty()); ++closed) all_.pop_front();
    const auto now = Deadline::clock::now();
    if (closed > 0)
      listen_again_ = now + closed * rest;
    else if (lacks_descriptors_)  // the listening socket stays readable
      listen_again_ = now + std::chrono::milliseconds(100);
    lacks_descriptors_ = false;
  }

 private:
  /// Connections beyond the ranks that are still absent.
  static constexpr std::size_t least = 16, most = 1024;
  /// For each connection that is closed for another one, none is accepted for this time, in which a rank can answer.
  static constexpr std::chrono::microseconds rest{250};

  /// Half of the process's descriptors remain the program's, unless the ranks and the least number need more.
  [[nodiscard]] static std::size_t limit_of(std::size_t others_in_use, std::size_t absent_ranks) {
    rlimit files{};
    if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return least + absent_ranks;
    const auto half = static_cast<std::size_t>(std::min<rlim_t>(files.rlim_cur / 2, others_in_use + most));
    return std::max(least + absent_ranks, half - std::min(half, others_in_use));
  }

  std::list<Connection> all_;
  std::size_t limit_ = least;
  bool lacks_descriptors_ = false;
  time_point listen_again_{};
};

}  // namespace distx::inline DISTX_ABI::detail::tcp
