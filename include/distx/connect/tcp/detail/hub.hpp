// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <sys/eventfd.h>
#include <sys/resource.h>

#include <atomic>
#include <list>
#include <sstream>
#include <thread>

#include "distx/connect/tcp/detail/handshake.hpp"
#include "distx/connect/tcp/detail/transport.hpp"
#include "distx/core/detail/start_thread.hpp"

namespace distx::inline DISTX_ABI::detail::tcp {

using control::Frame;
using control::most_frame_bytes;
using control::Process;

/// One of rank 0's connections, to a rank or a stranger.
struct HubConnection final : control::RankChannel {
  enum class Stage : std::uint8_t { challenged, proven, waiting, joined, closing };
  /// The time in which a connection proves the token and says hello, and in which a rank that is not served any more
  /// closes it.
  static constexpr std::chrono::seconds introduction{10};

  explicit HubConnection(Descriptor accepted) : socket(std::move(accepted)) {}
  void deliver(const Frame& frame) override {
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
  time_point end = time_point::max();  ///< when it is closed
};

/// Rank 0's connections, in the order in which they were accepted.
///
/// Those that have not proven the token are strangers, each of which has ten seconds to prove it. If there are too
/// many, the oldest one is closed for each that is accepted, so ranks are accepted during a flood.
class HubConnections {
 public:
  std::list<HubConnection> all;

  [[nodiscard]] bool may_accept(time_point now) const { return now >= listen_again_; }
  /// Returns when `flush` or the listening socket, if `now` is too early for it, is to be looked at again.
  [[nodiscard]] time_point next_end(time_point now) const {
    auto next = may_accept(now) ? time_point::max() : listen_again_;
    for (const auto& connection : all) next = std::min(next, connection.end);
    return next;
  }
  /// Sends what can be sent, and removes the connections that are closed, only had something to send, or are over.
  void flush(time_point now) {
    all.remove_if([now](HubConnection& connection) {
      connection.socket.flush();
      return !connection.socket.is_open() || now >= connection.end ||
             (connection.stage == HubConnection::Stage::closing && !connection.socket.has_output());
    });
  }

  /// Accepts and challenges a part of the connections that may be added, so that the ranks have their turn. Does not
  /// change `all`.
  [[nodiscard]] std::list<HubConnection> accept_some(const Listener& listener) {
    std::list<HubConnection> accepted;
    for (std::size_t left = std::min(std::size_t{64}, limit_ / 4); left > 0; --left) {
      HubConnection connection(Descriptor::from_native_handle(
          ::accept4(listener.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
      if (!connection.socket.is_open()) {
        lacks_descriptors_ = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        break;
      }
      // A rank does not send anything before it is challenged; most connections of a flood are closed by now.
      if (connection.socket.receive(1) != 0 || !connection.socket.received().empty()) continue;
      connection.nonce = random_nonce();
      connection.end = Deadline::clock::now() + HubConnection::introduction;
      connection.socket.append(greeting(connection.nonce));
      connection.socket.flush();
      accepted.push_back(std::move(connection));
    }
    return accepted;
  }
  /// Adds connections, and closes the oldest strangers beyond the limit.
  void admit(std::list<HubConnection> accepted, std::size_t absent_ranks) {
    const auto is_stranger = [](const auto& one) { return one.stage == HubConnection::Stage::challenged; };
    const auto strangers = accepted.size() + static_cast<std::size_t>(std::ranges::count_if(all, is_stranger));
    if (!accepted.empty()) {
      // The system gives the lowest free descriptor, so all below are in use.
      const auto in_use = static_cast<std::size_t>(accepted.back().socket.native_handle()) + 1;
      limit_ = limit_of(in_use - std::min(in_use, strangers), absent_ranks);
    }
    all.splice(all.end(), accepted);
    auto closed = strangers - std::min(strangers, limit_);
    if (closed == 0 && lacks_descriptors_ && strangers > 0) closed = 1;
    auto left = closed;
    all.remove_if([&](const auto& one) { return left > 0 && is_stranger(one) && left-- > 0; });
    const auto now = Deadline::clock::now();
    if (closed > 0)
      listen_again_ = now + closed * rest;
    else if (lacks_descriptors_)  // the listening socket stays readable
      listen_again_ = now + std::chrono::milliseconds(100);
    lacks_descriptors_ = false;
  }

 private:
  /// Strangers beyond the ranks that are still absent.
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

  std::size_t limit_ = least;  ///< of strangers
  bool lacks_descriptors_ = false;
  time_point listen_again_{};
};

/// Rank 0's service: accepts the other ranks, completes calls, and passes on failures. One thread serves them all.
///
/// It reads a fixed number of bytes of a stranger, and serves the ranks between any two batches of strangers.
class Hub final : public TcpTransport, control::ControlRoot {
 public:
  static constexpr std::size_t most_hello_bytes = 4096;

  Hub(Listener listener, const JoinTerms& terms)
      : ControlRoot("tcp", terms.size, true),
        listener_(std::move(listener)),
        token_(terms.token),
        limit_(terms.deadline),
        join_end_(terms.end.end()),
        wake_(Descriptor::from_native_handle(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {
    if (!wake_)
      throw BackendError("cannot make an event (" + system_message(errno) + "): raise the limit on open files",
                         terms.where(), errno);
    inbox.rank = 0;
    if (warning_) warning_.emplace(limit_);
    ranks_[0] = {.presence = Presence::here, .channel = &inbox, .process = posix::this_process()};
    if (size() == 1) welcome();
    thread_ = start_thread([this] { run(); }, terms.where());
  }
  ~Hub() override { end_connections(); }

  /// Takes a frame of rank 0 itself. May be called from any thread.
  void submit(Frame frame) override {
    const std::lock_guard lock(mutex_);
    if (!take(0, std::move(frame))) inbox.lose(out_of_order);
    wake();
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
  using Presence = control::RankRecord::Presence;

  // ---- The thread ----

  void wake() const noexcept { (void)::eventfd_write(wake_.native_handle(), 1); }
  void run() noexcept {
    while (!stopped_) try {
        turn();
      } catch (const std::exception& error) {  // out of memory
        const std::lock_guard lock(mutex_);
        inbox.lose(std::string("rank 0 cannot serve the others: ") + error.what());
        connections_.all.clear();
        for (auto& rank : ranks_) rank = {.presence = Presence::over};
        changed_.notify_all();
        return;
      }
  }
  void turn() {
    std::vector<pollfd> waited;
    int pause = 0;
    {
      const std::lock_guard lock(mutex_);
      const auto now = Deadline::clock::now();  // one time: poll must end when connections may be accepted again
      waited.push_back({wake_.native_handle(), POLLIN, 0});
      waited.push_back({connections_.may_accept(now) ? listener_.native_handle() : -1, POLLIN, 0});
      for (const auto& connection : connections_.all)
        waited.push_back({connection.socket.native_handle(), connection.socket.events(), 0});
      pause = milliseconds_until(next_end(now), 60000);
    }
    ::poll(waited.data(), static_cast<nfds_t>(waited.size()), pause);
    // Without the mutex, for which rank 0 may be waiting.
    auto accepted = waited[1].revents != 0 ? connections_.accept_some(listener_) : std::list<Connection>();
    const std::lock_guard lock(mutex_);
    eventfd_t count;
    if (waited[0].revents != 0) (void)::eventfd_read(wake_.native_handle(), &count);
    for (std::size_t next = 2; auto& connection : connections_.all)  // the same: only this thread changes the list
      if (waited[next++].revents != 0) serve(connection);
    const auto now = Deadline::clock::now();
    if (!joined_ && !refused_) warn("connect", 0, [&] { return not_joined().text; });
    if (!joined_ && !refused_ && now >= join_end_) refuse(not_joined());
    expire(now);
    connections_.flush(now);
    connections_.admit(std::move(accepted), absent_ranks());
    changed_.notify_all();
  }
  void end_connections() {
    stopped_ = true;
    wake();
    if (thread_.joinable()) thread_.join();
    connections_.flush(Deadline::clock::now());
    for (auto& connection : connections_.all) connection.socket.shut_down();
    connections_.all.clear();
  }
  /// Returns the time of the next deadline.
  [[nodiscard]] time_point next_end(time_point now) {
    const auto all_join = joined_ || refused_ ? time_point::max() : std::min(join_end_, warning_due());
    return std::min({all_join, connections_.next_end(now), ControlRoot::next_end(), now + std::chrono::minutes(1)});
  }
  [[nodiscard]] bool all_served() const {
    for (const auto& connection : connections_.all)
      if (connection.socket.has_output()) return false;
    for (std::size_t rank = 1; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].presence == Presence::here) return false;
      // A rank that has not been in time is not waited for once more.
      if (refused_ && refused_->error != 't' && ranks_[rank].presence == Presence::absent) return false;
    }
    return true;
  }

  // ---- Connections ----

  [[nodiscard]] std::size_t absent_ranks() const {
    return static_cast<std::size_t>(std::ranges::count(ranks_, Presence::absent, &control::RankRecord::presence));
  }
  /// Returns the error of a job whose ranks have not all joined in time.
  [[nodiscard]] Frame not_joined() {
    const auto missing = ranks_where(size(), [&](int rank) { return record(rank).presence == Presence::absent; });
    auto error = control::not_joined(missing, size(), limit_, "at " + listener_.endpoint().to_string());
    if (wrong_tokens_ > 0)
      error.text += "; " + std::to_string(wrong_tokens_) + (wrong_tokens_ == 1 ? " connection" : " connections") +
                    " had another token: set the same DISTX_TOKEN on every rank";
    return error;
  }
  void serve(Connection& connection) {
    if (!connection.socket.is_open()) return;
    const bool has_joined = connection.stage == Stage::joined;
    const bool open = connection.socket.receive(has_joined ? BufferedSocket::most_at_a_time : most_hello_bytes) == 0;
    if (connection.stage == Stage::challenged) challenge(connection);
    while (connection.stage == Stage::proven || connection.stage == Stage::joined) {
      auto frame = connection.socket.next(connection.stage == Stage::joined ? most_frame_bytes : most_hello_bytes);
      if (!frame) break;
      const bool is_taken =
          connection.stage == Stage::joined ? take(connection.rank, std::move(*frame)) : join(connection, *frame);
      if (!is_taken) return drop(connection, "sent a malformed message");
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
      connection.socket.append(proof(token_, "root", connection.nonce, nonce));
    } else {
      ++wrong_tokens_;
      connection.stage = Stage::closing;
      connection.socket.append(refusal());
    }
    connection.socket.flush();
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

  /// Returns why a process cannot join these ranks; null if it can.
  [[nodiscard]] std::optional<Frame> disagreement(int rank, int their_size, const Process& process) {
    if (their_size != size()) return control::other_size(rank, their_size, size());
    if (rank >= size())
      return control::refusal("invalid rank " + std::to_string(rank) + " (" + process.to_string() +
                              "): must be in [0, " + std::to_string(size()) + ")");
    if (record(rank).presence != Presence::absent) return control::twins(rank, record(rank).process, process);
    return std::nullopt;
  }
  /// Takes the first frame of a connection that has proven the token; returns false if it is malformed.
  bool join(Connection& connection, const Frame& frame) {
    const int rank = frame.rank;
    Process process;
    if (frame.kind != control::FrameKind::hello || rank < 0) return false;
    if (!(std::istringstream(frame.text) >> process)) return false;
    if (frame.size == 0) {
      connection.stage = Stage::waiting;
      connection.end = time_point::max();
      connection.process = std::move(process);
      return true;
    }
    auto error = disagreement(rank, frame.size, process);
    if (error && !joined_ && !refused_) refuse(*error);
    if (refused_) error = refused_;
    if (error) {
      connection.deliver(*error);
      connection.dismiss();
      if (rank < size() && record(rank).presence == Presence::absent) record(rank).presence = Presence::over;
      return true;
    }
    record(rank) = {.presence = Presence::here, .channel = &connection, .process = std::move(process)};
    connection.rank = rank;
    connection.stage = Stage::joined;
    connection.end = time_point::max();
    if (const Deadline theirs(control::timeout_of(frame.time_left)); theirs.end() < join_end_) {
      join_end_ = theirs.end();
      limit_ = control::timeout_of(frame.limit);
    }
    if (absent_ranks() == 0) welcome();
    return true;
  }
  std::optional<Frame> grow(Frame result) override {
    const int before = size();
    for (auto& connection : connections_.all) {
      if (connection.stage != Stage::waiting) continue;
      serve(connection);  // its process may have ended since the thread's last turn
      if (!connection.socket.is_open()) continue;
      connection.stage = Stage::joined;
      connection.rank = size();
      ranks_.push_back({.presence = Presence::here, .channel = &connection, .process = std::move(connection.process)});
    }
    if (size() == before) return result;
    for (auto& rank : ranks_) rank.part.reset();
    announce_group();
    return std::nullopt;
  }

  Listener listener_;
  std::string token_;
  Timeout limit_;
  time_point join_end_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Descriptor wake_;  ///< an event, which ends the wait of the thread
  HubConnections connections_;
  std::atomic<bool> stopped_{false};
  std::size_t wrong_tokens_ = 0;
  std::jthread thread_;
};

}  // namespace distx::inline DISTX_ABI::detail::tcp
