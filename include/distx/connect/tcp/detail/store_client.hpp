// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "distx/connect/tcp/detail/socket.hpp"

namespace distx::inline DISTX_ABI::detail::tcp {

/// A connection to the TCPStore of PyTorch's c10d, which torchrun's agent serves.
///
/// A query is one byte and its arguments; a number has 8 bytes in the host's order, and so does the length before a
/// text. Every call blocks until the given time at most, and returns false or null if the store cannot be reached or
/// does not answer in time; the connection is then closed, because an answer could still follow.
class StoreClient {
 public:
  using time_point = Deadline::clock::time_point;

  [[nodiscard]] bool is_open() const noexcept { return static_cast<bool>(socket_); }
  /// Returns why the last call has failed.
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }
  /// Returns the address of this host on the connection. @pre is_open()
  [[nodiscard]] SocketAddress own_address() const noexcept { return tcp::own_address(socket_); }

  bool open(const Endpoint& endpoint, time_point end) {
    const auto [addresses, unresolved] = resolve(endpoint);
    problem_ = unresolved;
    for (const auto& address : addresses) {
      auto socket = open_socket(address);
      if (const int code = socket ? connect_socket(socket, address, end) : errno; code != 0) {
        problem_ = system_message(code);
        continue;
      }
      tune(socket.native_handle());
      socket_ = std::move(socket);
      std::string query(1, validate);
      constexpr std::uint32_t magic_number = 0x3C85F7CE;
      query.append(reinterpret_cast<const char*>(&magic_number), sizeof magic_number);
      return send(query, end);
    }
    return false;
  }
  bool set(std::string_view key, std::string_view value, time_point end) {
    std::string query(1, set_value);
    append(query, key);
    append(query, value);
    return send(query, end);
  }
  /// Waits until a key is set, and returns its value.
  std::optional<std::string> get(std::string_view key, time_point end) {
    std::string query(1, wait_for_keys);
    const std::uint64_t keys = 1;
    query.append(reinterpret_cast<const char*>(&keys), sizeof keys);
    append(query, key);
    std::uint8_t stopped_waiting = 1;
    if (!send(query, end) || !receive(&stopped_waiting, 1, end)) return std::nullopt;
    query.assign(1, get_value);
    append(query, key);
    std::uint64_t length = 0;
    if (stopped_waiting != 0 || !send(query, end) || !receive(&length, sizeof length, end)) return std::nullopt;
    if (length > most_value_bytes) {
      fail("it sent a value of " + std::to_string(length) + " bytes");
      return std::nullopt;
    }
    std::string value(length, '\0');
    if (!receive(value.data(), value.size(), end)) return std::nullopt;
    return value;
  }

 private:
  static constexpr char validate = 0, set_value = 1, get_value = 3, wait_for_keys = 6;
  static constexpr std::uint64_t most_value_bytes = 1 << 20;

  static void append(std::string& query, std::string_view text) {
    const std::uint64_t length = text.size();
    query.append(reinterpret_cast<const char*>(&length), sizeof length).append(text);
  }
  bool fail(const std::string& problem) {
    problem_ = problem;
    socket_.reset();
    return false;
  }
  bool send(std::string_view query, time_point end) {
    if (!is_open()) return false;
    const int code = write_all(socket_.native_handle(), query, end);
    return code == 0 || fail(system_message(code));
  }
  bool receive(void* bytes, std::size_t count, time_point end) {
    const int code = read_all(socket_.native_handle(), static_cast<char*>(bytes), count, end);
    if (code == 0) return true;
    return fail(code == ENODATA     ? "it closed the connection"
                : code == ETIMEDOUT ? "rank 0 has not set its address in it"
                                    : system_message(code));
  }

  Descriptor socket_;
  std::string problem_;
};

}  // namespace distx::inline DISTX_ABI::detail::tcp
