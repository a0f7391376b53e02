// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "connect/over_tcp.hpp"

namespace test {

/// A store that answers as the TCPStore of PyTorch's c10d does, at a port of loopback.
class FakeStore {
 public:
  FakeStore() : thread_([this](const std::stop_token& stop) { run(stop); }) {}
  FakeStore(const FakeStore&) = delete;
  FakeStore& operator=(const FakeStore&) = delete;
  ~FakeStore() {
    thread_.request_stop();
    thread_.join();
  }

  [[nodiscard]] int port() const noexcept { return listener_.endpoint().port; }
  void set(const std::string& key, const std::string& value) {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
  }
  [[nodiscard]] std::map<std::string, std::string> values() {
    const std::lock_guard lock(mutex_);
    return values_;
  }

 private:
  struct Client {
    tcp::BufferedSocket socket;
    std::string in;
    std::string awaited;  ///< the key that it waits for
    bool waits = false;
  };

  void run(const std::stop_token& stop) {
    std::list<Client> clients;
    while (!stop.stop_requested()) {
      std::vector<pollfd> waited{{listener_.native_handle(), POLLIN, 0}};
      for (const auto& client : clients) waited.push_back({client.socket.native_handle(), POLLIN, 0});
      ::poll(waited.data(), static_cast<nfds_t>(waited.size()), 20);
      auto events = waited.begin() + 1;
      for (auto client = clients.begin(); client != clients.end(); ++events) {
        char bytes[4096];
        const auto count = events->revents == 0 ? -1 : ::recv(client->socket.native_handle(), bytes, sizeof bytes, 0);
        if (count > 0) client->in.append(bytes, static_cast<std::size_t>(count));
        if (count == 0) {
          client = clients.erase(client);
          continue;
        }
        while (answer(*client)) continue;
        ++client;
      }
      if (waited[0].revents != 0) clients.push_back({accept(listener_), {}, {}, false});
    }
  }
  /// Answers one query, if it is complete.
  bool answer(Client& client) {
    std::size_t at = 0;
    bool complete = true;
    const auto number = [&] {
      std::uint64_t value = 0;
      complete = complete && client.in.size() - at >= sizeof value;
      if (complete) std::memcpy(&value, client.in.data() + at, sizeof value);
      at += complete ? sizeof value : 0;
      return value;
    };
    const auto text = [&] {
      const auto length = number();
      complete = complete && client.in.size() - at >= length;
      const std::string value = complete ? client.in.substr(at, length) : std::string();
      at += complete ? length : 0;
      return value;
    };
    const auto reply = [&](const std::string& bytes) { (void)send(client.socket, bytes); };
    const auto reply_number = [&](std::uint64_t value) {
      reply(std::string(reinterpret_cast<const char*>(&value), sizeof value));
    };
    const std::lock_guard lock(mutex_);
    if (client.waits) {
      if (!values_.contains(client.awaited)) return false;
      client.waits = false;
      reply(std::string(1, '\0'));
    }
    if (client.in.empty()) return false;
    const char query = client.in[at++];
    switch (query) {
      case 0:
        at += 4;
        complete = client.in.size() >= at;
        if (complete && client.in.substr(1, 4) != "\xCE\xF7\x85\x3C") client.socket.close();
        break;
      case 1: {
        const auto key = text(), value = text();
        if (complete) values_[key] = value;
        break;
      }
      case 3: {
        const auto key = text();
        if (!complete) break;
        const auto value = values_[key];
        reply_number(value.size());
        reply(value);
        break;
      }
      case 6: {
        (void)number();  // of keys, one here
        const auto key = text();
        if (complete) {
          client.awaited = key;
          client.waits = true;
        }
        break;
      }
      default:
        client.socket.close();
    }
    if (complete) client.in.erase(0, at);
    return complete;
  }

  tcp::Listener listener_ = listen_on_loopback();
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
  std::jthread thread_;
};

}  // namespace test
