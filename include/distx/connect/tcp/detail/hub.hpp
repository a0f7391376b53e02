// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <atomic>
#include <sstream>
#include <thread>

#include "distx/connect/tcp/detail/hub_connections.hpp"
#include "distx/core/detail/start_thread.hpp"

namespace distx::inline DISTX_ABI::detail::tcp {

/// Rank 0's service: accepts the other ranks, completes calls, and passes on failures. One thread serves them all.
///
/// It reads a fixed number of bytes of a stranger, and serves the ranks between any two batches of strangers.
class Hub final : public TcpTransport, control::ControlRoot {
 public:
  static constexpr std::size_t most_hello_bytes = 4096;

  Hub(Listener listener, const JoinTerms& terms, const Deadline& deadline)
      : ControlRoot("tcp", terms.size, true),
        listener_(std::move(listener)),
        token_(terms.token),
        limit_(terms.deadline),
        join_end_(deadline.end()),
        wake_(terms.where()) {
    inbox.rank = 0;
    if (warning_) warning_.emplace(limit_);
    ranks_[0] = {.presence = Presence::here, .channel = &inbox, .process = posix::this_process()};
    if (size() == 1) welcome();
    thread_ = start_thread([this] { run(); }, terms.where());
  }
  ~Hub() override { end_connections(); }

  /// Takes a frame of rank 0 itself. May be called from any thread.
  void submit(const control::Frame& frame) override {
    const std::lock_guard lock(mutex_);
    if (!take(0, frame)) inbox.lose(out_of_order);
    wake_.wake();
  }

  /// Waits until the others have left, up to the deadline, or briefly once an error is known; closes all connections.
  void close(const Timeout& limit) override {
    {
      std::unique_lock lock(mutex_);
      const auto over = [&] { return all_served(); };
      if (control::wait_for(changed_, lock, Deadline(limit).end(), [&] { return over() || is_in_error(); }))
        control::wait_for(changed_, lock, Deadline(after_error).end(), over);
    }
    end_connections();
  }

 private:
  using Connection = HubConnection;
  using Stage = HubConnection::Stage;
  using Presence = RankRecord::Presence;

  // ---- The thread ----

  void run() noexcept {
    while (!stopped_) try {
        turn();
      } catch (const std::exception& error) {  // out of memory
        const std::lock_guard lock(mutex_);
        inbox.lose(std::string("rank 0 cannot serve the others: ") + error.what());
        connections_.clear();
        strangers_.all().clear();
        for (auto& other : ranks_) other.channel = nullptr;
        ranks_[0].presence = Presence::over;
        broken_ = true;
        changed_.notify_all();
        return;
      }
  }
  void turn() {
    std::vector<pollfd> waited;
    std::vector<Connection*> of;
    int pause = 0;
    {
      const std::lock_guard lock(mutex_);
      const auto now = Deadline::clock::now();  // one time: poll must end when connections may be accepted again
      waited.push_back({wake_.native_handle(), POLLIN, 0});
      waited.push_back({strangers_.may_accept(now) ? listener_.native_handle() : -1, POLLIN, 0});
      for (auto* list : {&connections_, &strangers_.all()})
        for (auto& connection : *list) {
          waited.push_back({connection.socket.native_handle(), connection.socket.events(), 0});
          of.push_back(&connection);
        }
      pause = milliseconds_until(next_end(now), 60000);
    }
    ::poll(waited.data(), static_cast<nfds_t>(waited.size()), pause);
    // Without the mutex, for which rank 0 may be waiting.
    auto accepted = waited[1].revents != 0 ? strangers_.accept_some(listener_) : std::list<Connection>();
    const std::lock_guard lock(mutex_);
    if (waited[0].revents != 0) wake_.drain();
    for (std::size_t i = 0; i < of.size(); ++i)
      if (waited[i + 2].revents != 0) serve(*of[i]);
    look_at_clock();
    for (auto* list : {&connections_, &strangers_.all()}) {
      for (auto& connection : *list) connection.socket.flush();
      list->remove_if([&](Connection& connection) {
        return !connection.socket.is_open() || (connection.stage == Stage::closing && !connection.socket.has_output());
      });
    }
    strangers_.admit(std::move(accepted), absent_ranks());
    changed_.notify_all();
  }
  void end_connections() {
    stopped_ = true;
    wake_.wake();
    if (thread_.joinable()) thread_.join();
    for (auto& connection : connections_) {
      connection.socket.flush();
      connection.socket.shut_down();
    }
    connections_.clear();
    strangers_.all().clear();
  }
  /// Returns the time of the next deadline.
  [[nodiscard]] time_point next_end(time_point now) {
    auto next = time_point::max();
    if (!joined_ && !refused_) next = std::min({next, join_end_, warning_due()});
    for (const auto& connection : connections_)
      if (connection.stage != Stage::joined) next = std::min(next, connection.end);
    next = std::min(next, strangers_.next_end(now));
    return std::min({next, ControlRoot::next_end(), now + std::chrono::minutes(1)});
  }
  void look_at_clock() {
    const auto now = Deadline::clock::now();
    const auto absent = [&] { return not_joined(ranks_, limit_, listener_.endpoint(), wrong_tokens_); };
    if (!joined_ && !refused_) warn("connect", 0, [&] { return absent().message; });
    if (!joined_ && !refused_ && now >= join_end_) refuse(absent());
    for (auto& connection : connections_)
      if (connection.stage != Stage::joined && now >= connection.end) connection.socket.close();
    strangers_.expire(now);
    ControlRoot::expire(now);
  }
  [[nodiscard]] bool all_served() const {
    if (broken_) return true;
    for (const auto& connection : connections_)
      if (connection.socket.has_output()) return false;
    for (std::size_t rank = 1; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].presence == Presence::here) return false;
      // A rank that has not been in time is not waited for once more.
      if (refused_ && refused_->type != 't' && !ranks_[rank].refused && ranks_[rank].presence == Presence::absent)
        return false;
    }
    return true;
  }

  // ---- Connections ----

  [[nodiscard]] std::size_t absent_ranks() const {
    return static_cast<std::size_t>(std::ranges::count(ranks_, RankRecord::Presence::absent, &RankRecord::presence));
  }
  void serve(Connection& connection) {
    if (!connection.socket.is_open()) return;
    const bool has_joined = connection.stage == Stage::joined;
    const bool open = connection.socket.receive(has_joined ? BufferedSocket::most_at_a_time : most_hello_bytes) == 0;
    if (connection.stage == Stage::challenged) challenge(connection);
    while (connection.stage == Stage::proven || connection.stage == Stage::joined) {
      if (connection.stage == Stage::proven && connection.socket.received().size() > most_hello_bytes) {
        connection.socket.close();
        return;
      }
      auto [frame, too_long] = connection.socket.next();
      if (too_long || (frame && !take_from(connection, *frame))) {
        drop(connection, "sent a malformed message");
        return;
      }
      if (!frame) break;
    }
    if (connection.stage == Stage::waiting && !connection.socket.received().empty()) return connection.socket.close();
    if (!open) drop(connection, "exited unexpectedly");
  }
  void challenge(Connection& connection) {
    const auto received = connection.socket.received();
    const auto known = std::min(received.size(), magic.size());
    if (received.substr(0, known) != magic.substr(0, known)) return connection.socket.close();
    if (received.size() < answer_bytes) return;
    const auto answer = connection.socket.take(answer_bytes);
    const auto nonce = std::string_view(answer).substr(magic.size(), digest_bytes);
    const auto proven = std::string_view(answer).substr(greeting_bytes);
    if (equal_digests(proven, proof(token_, "rank", connection.nonce, nonce))) {
      connection.stage = Stage::proven;
      tune(connection.socket.native_handle());
      connections_.splice(connections_.end(), strangers_.all(),
                          std::ranges::find(strangers_.all(), &connection, [](auto& one) { return &one; }));
      connection.socket.append(proof(token_, "root", connection.nonce, nonce));
    } else {
      ++wrong_tokens_;
      connection.stage = Stage::closing;
      connection.socket.append(refusal());
    }
    connection.socket.flush();
  }
  bool take_from(Connection& connection, const control::Frame& frame) {
    if (connection.stage == Stage::joined) return take(connection.rank, frame);
    return frame.kind == control::FrameKind::hello && join(connection, frame);
  }
  void drop(Connection& connection, const std::string& how) {
    connection.socket.close();
    if (connection.rank < 0) return;
    const int rank = std::exchange(connection.rank, -1);
    record(rank).channel = nullptr;
    if (record(rank).presence == Presence::over) return;
    end(rank, control::RankEnd::exited, name_and_process(rank) + " " + how);
  }

  // ---- Joining ----

  bool join(Connection& connection, const control::Frame& frame) {
    control::FrameReader in(frame.body);
    const int rank = in.small(1 << 20);
    const int their_size = in.small(1 << 20);
    const auto limit = in.number();
    const auto left = in.number();
    Process process;
    if (!(std::istringstream(std::string(in.text())) >> process) || !in.complete()) return false;
    if (their_size == 0) {
      connection.stage = Stage::waiting;
      connection.end = time_point::max();
      connection.process = std::move(process);
      return true;
    }
    auto error = disagreement(ranks_, rank, their_size, process);
    if (error && !joined_ && !refused_) refuse(*error);
    if (refused_) error = refused_;
    if (error) {
      connection.deliver(error->frame(control::FrameKind::refuse));
      connection.dismiss();
      if (rank < size()) record(rank).refused = true;
      return true;
    }
    record(rank) = {.presence = Presence::here, .channel = &connection, .process = std::move(process)};
    connection.rank = rank;
    connection.stage = Stage::joined;
    if (const Deadline theirs(control::timeout_of(left)); theirs.end() < join_end_) {
      join_end_ = theirs.end();
      limit_ = control::timeout_of(limit);
    }
    if (absent_ranks() == 0) welcome();
    return true;
  }
  std::optional<control::Frame> grow(control::Frame result) override {
    const int before = size();
    for (auto& connection : connections_) {
      if (connection.stage != Stage::waiting) continue;
      serve(connection);  // its process may have ended since the thread's last turn
      if (!connection.socket.is_open()) continue;
      connection.stage = Stage::joined;
      connection.rank = size();
      ranks_.push_back({.presence = Presence::here, .channel = &connection, .process = std::move(connection.process)});
    }
    if (size() == before) return result;
    announce_group();
    return control::Frame{result.kind, "1"};
  }

  Listener listener_;
  std::string token_;
  Timeout limit_;
  time_point join_end_;

  std::mutex mutex_;
  std::condition_variable changed_;
  WakeEvent wake_;
  std::list<Connection> connections_;  ///< that have proven the token
  Strangers strangers_;
  std::atomic<bool> stopped_{false};
  bool broken_ = false;
  std::size_t wrong_tokens_ = 0;
  std::jthread thread_;
};

}  // namespace distx::inline DISTX_ABI::detail::tcp
