// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "distx/connect/tcp/start_group.hpp"

namespace distx::inline DISTX_ABI::detail::tcp {

/// A connection to the TCPStore of PyTorch's c10d, which torchrun's agent serves.
///
/// A query is one byte and its arguments; a number has 8 bytes in the host's order, and so does the length before a
/// text. Every call blocks until the given time at most, and returns false or null if the store cannot be reached or
/// does not answer in time; the connection is then closed, because an answer could still follow.
class StoreClient {
 public:
  [[nodiscard]] bool is_open() const noexcept { return socket_.is_open(); }
  /// Returns why the last call has failed.
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }
  /// Returns the address of this host on the connection. @pre is_open()
  [[nodiscard]] SocketAddress own_address() const noexcept { return tcp::own_address(socket_.native_handle()); }

  bool open(const Endpoint& endpoint, time_point end) {
    const auto [addresses, unresolved] = resolve(endpoint);
    problem_ = unresolved;
    for (const auto& address : addresses) {
      socket_ = BufferedSocket(connected_socket(address, end));
      if (is_open()) return ask(bytes_of(validate) + bytes_of(magic_number), 0, end);
      problem_ = system_message(errno);
    }
    return false;
  }
  bool set(std::string_view key, std::string_view value, time_point end) {
    return ask(bytes_of(set_value) + text(key) + text(value), 0, end);
  }
  /// Waits until a key is set, and returns its value.
  std::optional<std::string> get(std::string_view key, time_point end) {
    const auto await = bytes_of(wait_for_keys) + bytes_of(std::uint64_t{1}) + text(key);
    if (!ask(await, 1, end) || socket_.take(1) != bytes_of('\0')) return std::nullopt;
    std::uint64_t length = 0;
    if (!ask(bytes_of(get_value) + text(key), sizeof length, end)) return std::nullopt;
    std::memcpy(&length, socket_.take(sizeof length).data(), sizeof length);
    if (length > most_value_bytes) {
      fail("it sent a value of " + std::to_string(length) + " bytes");
      return std::nullopt;
    }
    if (!ask({}, length, end)) return std::nullopt;
    return socket_.take(length);
  }

 private:
  static constexpr char validate = 0, set_value = 1, get_value = 3, wait_for_keys = 6;
  static constexpr std::uint32_t magic_number = 0x3C85F7CE;
  static constexpr std::uint64_t most_value_bytes = 1 << 20;

  template <class Number>
  static std::string bytes_of(Number value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static std::string text(std::string_view value) { return bytes_of(std::uint64_t{value.size()}).append(value); }
  bool fail(const std::string& problem) {
    problem_ = problem;
    socket_.close();
    return false;
  }
  /// Sends a query, and receives the first bytes of its answer.
  bool ask(std::string_view query, std::size_t count, time_point end) {
    if (!is_open()) return false;
    socket_.append(query);
    const int code = socket_.exchange(count, end);
    if (code == 0) return true;
    return fail(code == ENODATA     ? "it closed the connection"
                : code == ETIMEDOUT ? "rank 0 has not set its address in it"
                                    : system_message(code));
  }

  BufferedSocket socket_;
  std::string problem_;
};

/// Returns the connector of ranks that meet in torchrun's store. Collective.
/// @param endpoint  where an agent serves the store
/// @param prefix  of this job's keys in it, different after each restart
/// @param on_one_host  whether all ranks are on the host of rank 0
[[nodiscard]] inline TcpConnector start_by_store(const Endpoint& endpoint, const std::string& prefix, bool on_one_host,
                                                 const JoinTerms& terms) {
  const auto context = terms.where();
  const auto key = prefix + "rank 0";
  StoreClient store;
  using std::chrono::milliseconds;
  for (milliseconds pause(1); !store.open(endpoint, terms.end.end()); pause = std::min(2 * pause, milliseconds(100))) {
    if (terms.end.expired())
      throw TimeoutError("timed out after " + terms.deadline.to_string() + ": cannot reach torchrun's store at " +
                             endpoint.to_string() + " (" + store.problem() + ")",
                         context);
    std::this_thread::sleep_for(pause);
  }
  // On several hosts: the address by which this host reaches the store. Where a host's name stands for loopback, the
  // others know it by that name.
  const SocketAddress own = store.own_address();
  const bool has_address = !on_one_host && !own.is_loopback();
  const std::string bind = on_one_host ? "127.0.0.1" : has_address ? own.to_string() : "0.0.0.0";
  return connect_by({.bind = bind,
                     .host = on_one_host || has_address ? bind : endpoint.host,
                     .publish =
                         [&](const std::string& address) {
                           if (!store.set(key, address, terms.end.end()))
                             throw ConnectError(
                                 "torchrun's store at " + endpoint.to_string() + " failed: " + store.problem(),
                                 context);
                         },
                     .read = [&](time_point end) -> std::optional<std::string> {
                       if (!store.is_open() && !store.open(endpoint, end)) return std::nullopt;
                       return store.get(key, end);
                     }},
                    terms);
}

}  // namespace distx::inline DISTX_ABI::detail::tcp
