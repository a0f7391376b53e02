// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <vector>

#include "distx/connect/control/messages.hpp"
#include "distx/connect/detail/variables.hpp"
#include "distx/core/deadline.hpp"
#include "distx/core/error.hpp"
#include "distx/posix/descriptor.hpp"

namespace distx::inline DISTX_ABI::detail::tcp {

using posix::Descriptor;

/// A host name or address, and a port.
struct Endpoint {
  std::string host;
  int port = 0;

  [[nodiscard]] std::string to_string() const {
    const bool is_v6 = host.find(':') != std::string::npos;
    return (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
  }
};

/// Splits `host:port` or `[host]:port`; the host is empty if the port is missing.
[[nodiscard]] inline Endpoint endpoint_from(std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) return {};
  auto host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const auto port = parse_int(text.substr(colon + 1));
  return {std::string(host), port.value_or(0)};
}

/// One address that an endpoint's name stands for.
struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t length = 0;

  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&bytes); }
  [[nodiscard]] bool is_loopback() const {
    const auto text = to_string();
    return text.starts_with("127.") || text == "::1";
  }
  /// Returns the address without the port, in numbers.
  [[nodiscard]] std::string to_string() const {
    char text[NI_MAXHOST] = "?";
    ::getnameinfo(get(), length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
    return text;
  }
  [[nodiscard]] int port() const noexcept {
    sockaddr_in v4;  // the port has the same place in both families
    std::memcpy(&v4, &bytes, sizeof v4);
    return ntohs(v4.sin_port);
  }
};

/// Returns the address of a socket on this host; its port is 0 if the system does not say it.
[[nodiscard]] inline SocketAddress own_address(int socket) noexcept {
  SocketAddress own;
  own.length = sizeof own.bytes;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&own.bytes), &own.length);
  return own;
}

[[nodiscard]] inline std::string system_message(int code) { return std::generic_category().message(code); }

/// The addresses of an endpoint, or the reason that there are none.
struct Resolution {
  std::vector<SocketAddress> addresses;
  std::string problem;
};

[[nodiscard]] inline Resolution resolve(const Endpoint& endpoint) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  Resolution result;
  const auto port = std::to_string(endpoint.port);
  if (const int code = ::getaddrinfo(endpoint.host.c_str(), port.c_str(), &hints, &found); code != 0) {
    result.problem = "cannot resolve '" + endpoint.host + "' (" +
                     (code == EAI_SYSTEM ? system_message(errno) : std::string(::gai_strerror(code))) + ")";
    return result;
  }
  for (const addrinfo* next = found; next != nullptr; next = next->ai_next) {
    SocketAddress address;
    address.length = static_cast<socklen_t>(next->ai_addrlen);
    std::memcpy(&address.bytes, next->ai_addr, next->ai_addrlen);
    result.addresses.push_back(address);
  }
  ::freeaddrinfo(found);
  // Both families are tried; IPv4 first, since a rank 0 that binds one address binds the first.
  std::stable_partition(result.addresses.begin(), result.addresses.end(),
                        [](const auto& address) { return address.bytes.ss_family == AF_INET; });
  return result;
}

/// Makes a socket that never blocks and is not inherited by other programs; null, with `errno`, if the system refuses.
[[nodiscard]] inline Descriptor open_socket(const SocketAddress& address) noexcept {
  return Descriptor::from_native_handle(
      ::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/// Sends small frames at once, and notices a host that has vanished without closing its connections.
inline void tune(int descriptor) noexcept {
  const auto set = [&](int level, int name, int value) { ::setsockopt(descriptor, level, name, &value, sizeof value); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 30000);
}

/// Returns the milliseconds until a point in time, for poll(2): at least 0, at most `most`.
[[nodiscard]] inline int milliseconds_until(Deadline::clock::time_point end, int most) noexcept {
  const auto left = end - Deadline::clock::now();
  if (left <= Deadline::clock::duration::zero()) return 0;
  const auto count = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return count < most ? static_cast<int>(count) : most;
}

/// Waits until a socket is ready for `events`; returns false at the end of the wait.
[[nodiscard]] inline bool await_events(int descriptor, short events, Deadline::clock::time_point end) noexcept {
  for (;;) {
    pollfd waited{descriptor, events, 0};
    const int count = ::poll(&waited, 1, milliseconds_until(end, 1000));
    if (count > 0) return true;
    if (Deadline::clock::now() >= end) return false;
  }
}

/// Returns a socket that is connected to the address; null, with `errno`, if that fails or lasts longer.
[[nodiscard]] inline Descriptor connected_socket(const SocketAddress& address,
                                                 Deadline::clock::time_point end) noexcept {
  auto socket = open_socket(address);
  if (!socket) return {};
  int code = ::connect(socket.native_handle(), address.get(), address.length) == 0 ? 0 : errno;
  if (code == EINPROGRESS || code == EINTR) {
    socklen_t length = sizeof code;
    if (!await_events(socket.native_handle(), POLLOUT, end))
      code = ETIMEDOUT;
    else if (::getsockopt(socket.native_handle(), SOL_SOCKET, SO_ERROR, &code, &length) != 0)
      code = errno;
  }
  tune(socket.native_handle());
  if (code != 0) socket.reset();
  errno = code;
  return socket;
}

/// Rank 0's listening socket, and the addresses that the others use.
class Listener {
 public:
  /// Listens at the first of the endpoint's addresses; port 0 stands for one that is free.
  /// @throws ConnectError if the address cannot be used; its `code()` is EADDRINUSE if another program uses it
  Listener(const SocketAddress& address, const Endpoint& named, const ErrorContext& context)
      : socket_(open_socket(address)) {
    const auto refuse = [&](int code) {
      throw ConnectError(
          "cannot listen at " + named.to_string() + " (" + system_message(code) + ")" +
              (code == EADDRINUSE ? ": choose another port"
                                  : ": rank 0 needs an address of the host it runs on, or an address to bind (bind=…)"),
          context, code);
    };
    const int one = 1;
    if (!socket_) refuse(errno);
    ::setsockopt(socket_.native_handle(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (::bind(socket_.native_handle(), address.get(), address.length) != 0) refuse(errno);
    if (::listen(socket_.native_handle(), SOMAXCONN) != 0) refuse(errno);
    endpoint_ = {named.host, own_address(socket_.native_handle()).port()};
    if (endpoint_.port == 0) refuse(errno);
  }

  [[nodiscard]] int native_handle() const noexcept { return socket_.native_handle(); }
  /// Returns the name that was given, with the port in use.
  [[nodiscard]] const Endpoint& endpoint() const noexcept { return endpoint_; }

 private:
  Descriptor socket_;
  Endpoint endpoint_;
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
  /// Takes the next frame, if it is complete; see `parse_frame`.
  [[nodiscard]] std::optional<control::Frame> next(std::size_t most = control::most_frame_bytes) {
    return control::parse_frame(in_, taken_, most);
  }

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
