// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <sys/resource.h>

#include <list>

#include "distx/connect/tcp/detail/hub_connection.hpp"

namespace distx::inline DISTX_ABI::detail::tcp {

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
