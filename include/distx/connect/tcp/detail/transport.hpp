// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/control/group.hpp"
#include "distx/connect/tcp/detail/socket.hpp"

namespace distx::inline DISTX_ABI::detail::tcp {

using control::time_point;

/// One rank's connections over TCP: rank 0 has a `Hub`; each of the others has a `Spoke`.
class TcpTransport : public control::ControlTransport {
 public:
  /// How long ranks that join later are still notified of an error, and leaving ranks are waited for after one.
  static constexpr std::chrono::seconds after_error{2};

  /// A frame has a few more.
  [[nodiscard]] std::size_t most_bytes() const noexcept override { return control::most_frame_bytes - 4096; }
  void leave(bool unwinding, bool in_error, const Timeout& deadline) override {
    submit({{.kind = control::FrameKind::leave, .end = unwinding ? control::RankEnd::threw : control::RankEnd::left}});
    close(in_error ? Timeout(after_error) : deadline);
  }
  /// Waits until the other side has received everything, up to the limit, and ends the connections.
  virtual void close(const Timeout& limit) = 0;
};

/// The connection of a rank to rank 0. It has no thread: waits and polls receive what is there.
class Spoke final : public TcpTransport {
 public:
  /// @param root  where the socket is connected to rank 0 of `size` ranks, or of a running job if that is 0
  Spoke(BufferedSocket socket, const Endpoint& root, int size)
      : lost_((size == 0 ? "rank 0" : control::name_of(0, size)) + " (at " + root.to_string() +
              ") exited unexpectedly"),
        socket_(std::move(socket)) {}

  void submit(control::Frame frame) override {
    const std::lock_guard lock(mutex_);
    socket_.append(frame);
    socket_.flush();
  }
  time_point receive(std::chrono::microseconds pause) override {
    const short events = [&] {
      const std::lock_guard lock(mutex_);
      return socket_.events();
    }();
    const auto now = Deadline::clock::now();
    // Ends early, except if a poll of another thread takes the frame; longer than a pause, as a thousand ranks may
    // wait.
    (void)await_events(socket_.native_handle(), events, now + 20 * pause);
    take_frames();
    return now;
  }
  void look_for(std::uint64_t) override { take_frames(); }
  /// Waits briefly until rank 0 has received everything and has closed the connection.
  void close(const Timeout&) override {
    const std::lock_guard lock(mutex_);
    const Deadline deadline(after_error);
    if (socket_.exchange(0, deadline.end()) != 0) return;
    socket_.shut_down();
    (void)socket_.exchange(~std::size_t{0}, deadline.end());
  }

 private:
  void take_frames() {
    const std::lock_guard lock(mutex_);
    if (is_lost_) return;
    socket_.flush();
    is_lost_ = socket_.receive() != 0;
    bool is_valid = true;
    while (const auto frame = is_valid ? socket_.next() : std::nullopt) is_valid = inbox.take(*frame);
    is_lost_ = is_lost_ || !is_valid;
    if (is_lost_) inbox.lose(lost_);
  }

  std::mutex mutex_;
  std::string lost_;  ///< the message of an end of the connection
  BufferedSocket socket_;
  bool is_lost_ = false;
};

/// The rank, the size, and the conditions under which a rank joins.
struct JoinTerms {
  int rank = 0;
  int size = 1;  ///< 0 for a process that joins a running job
  Timeout deadline = default_deadline;
  std::string token{};
  Deadline end{deadline};  ///< of the call, which may have begun before

  [[nodiscard]] Timeout remaining() const noexcept {
    return end.unlimited() ? Timeout(no_timeout) : end.end() - Deadline::clock::now();
  }
  [[nodiscard]] ErrorContext where() const noexcept {
    return {.operation = "connect", .backend = "tcp", .rank = size > 0 ? rank : -1, .size = size};
  }
};

}  // namespace distx::inline DISTX_ABI::detail::tcp
