// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <sys/eventfd.h>

#include <string>

#include "distx/connect/control/frame.hpp"
#include "distx/connect/tcp/detail/socket.hpp"

namespace distx::inline DISTX_ABI::detail::tcp {

/// Wakes a thread that waits in poll(2).
class WakeEvent {
 public:
  explicit WakeEvent(const ErrorContext& context)
      : event_(Descriptor::from_native_handle(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {
    if (!event_)
      throw BackendError("cannot make an event (" + system_message(errno) + "): raise the limit on open files", context,
                         errno);
  }
  void wake() const noexcept { (void)::eventfd_write(native_handle(), 1); }
  void drain() const noexcept {
    eventfd_t count;
    (void)::eventfd_read(native_handle(), &count);
  }
  [[nodiscard]] int native_handle() const noexcept { return event_.native_handle(); }

 private:
  Descriptor event_;
};

/// A connected socket with the bytes that are on their way in both directions. Never blocks.
class BufferedSocket {
 public:
  explicit BufferedSocket(Descriptor socket = {}) : socket_(std::move(socket)) {}

  [[nodiscard]] int native_handle() const noexcept { return socket_.native_handle(); }
  [[nodiscard]] bool is_open() const noexcept { return static_cast<bool>(socket_); }
  [[nodiscard]] bool has_output() const noexcept { return sent_ < out_.size(); }
  /// Returns the events to wait for.
  [[nodiscard]] short events() const noexcept { return static_cast<short>(has_output() ? POLLIN | POLLOUT : POLLIN); }

  void append(std::string_view bytes) { out_ += bytes; }
  void append(const control::Frame& frame) { control::append_frame(out_, frame); }
  /// Sends what the system takes now; returns 0, or the error of the connection, which shows when it is read, too.
  int flush() noexcept {
    int code = 0;
    while (is_open() && has_output()) {
      const auto count = ::send(native_handle(), out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (count < 0) code = errno;
      sent_ = count < 0 ? out_.size() : sent_ + static_cast<std::size_t>(count);
    }
    if (!has_output()) {
      out_.clear();
      sent_ = 0;
    }
    return code;
  }
  /// The most bytes that are received at a time, so that others have their turn.
  static constexpr std::size_t most_at_a_time = 1 << 20;

  /// Receives available bytes, up to `most`; returns 0, ENODATA at the end of the connection, or its error.
  [[nodiscard]] int receive(std::size_t most = most_at_a_time) {
    in_.erase(0, taken_);
    taken_ = 0;
    char block[65536];
    while (most > 0) {
      const auto wanted = std::min(most, sizeof block);
      const auto count = ::recv(native_handle(), block, wanted, 0);
      if (count == 0) return ENODATA;
      if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : errno;
      in_.append(block, static_cast<std::size_t>(count));
      if (static_cast<std::size_t>(count) < wanted) return 0;
      most -= wanted;
    }
    return 0;
  }
  /// Sends everything and receives until that many bytes are there. Blocks until `end` at most.
  /// @return 0, ETIMEDOUT, ENODATA if the other side closed the connection, or its error
  [[nodiscard]] int exchange(std::size_t wanted, Deadline::clock::time_point end) {
    const auto is_complete = [&] { return received().size() >= wanted && !has_output(); };
    for (;;) {
      if (const int code = flush(); code != 0) return code;
      if (is_complete()) return 0;
      if (!await_events(native_handle(), events(), end)) return ETIMEDOUT;
      if (const int code = receive(); code != 0) return is_complete() ? 0 : code;
    }
  }
  /// Returns the received bytes that nothing has taken.
  [[nodiscard]] std::string_view received() const noexcept { return std::string_view(in_).substr(taken_); }
  /// Takes that many received bytes.
  std::string take(std::size_t count) {
    taken_ += count;
    return in_.substr(taken_ - count, count);
  }
  /// Takes the next frame, if it is complete.
  [[nodiscard]] control::ParsedFrame next() { return control::parse_frame(in_, taken_); }

  /// Ends the sending side of the connection.
  void shut_down() noexcept {
    if (is_open()) ::shutdown(native_handle(), SHUT_WR);
  }
  void close() noexcept { socket_.reset(); }

 private:
  Descriptor socket_;
  std::string in_;
  std::string out_;
  std::size_t taken_ = 0;
  std::size_t sent_ = 0;
};

}  // namespace distx::inline DISTX_ABI::detail::tcp
