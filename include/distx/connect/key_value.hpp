// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <chrono>
#include <concepts>
#include <optional>
#include <span>
#include <string>

#include "distx/connect/self.hpp"
#include "distx/posix/host.hpp"

namespace distx::inline DISTX_ABI {

/// A store of keys and values that all ranks reach, such as one that another framework has made.
///
/// `set` publishes a value, once for each key. `get` waits until the key has a value, up to a limit, and returns it;
/// nothing at the limit.
template <class S>
concept KeyValueStore = requires(S& store, const std::string& key, std::chrono::milliseconds limit) {
  store.set(key, key);
  { store.get(key, limit) } -> std::same_as<std::optional<std::string>>;
};

/// A Connector of ranks that share a store of keys and values.
///
/// It opens no connections and starts no threads. It does not notice a process that fails: calls that a rank does not
/// enter throw at the deadline. The keys stay in the store.
template <KeyValueStore Store>
class KeyValueConnector : public detail::RankNumbers {
 public:
  /// Joins the other ranks. Collective; blocks until all ranks have joined.
  ///
  /// @param prefix  of the keys; the same on every rank, and no other connector's
  /// @param rank  in [0, size)
  /// @param deadline  of this call and of every later one
  /// @throws ConnectError if rank is not in [0, size); TimeoutError if a rank does not join
  KeyValueConnector(Store store, std::string prefix, int rank, int size, Timeout deadline = default_deadline)
      : RankNumbers(rank, size), store_(std::move(store)), prefix_(std::move(prefix)), deadline_(deadline) {
    if (rank < 0 || rank >= size)
      throw ConnectError("invalid rank " + std::to_string(rank) + ": must be in [0, " + std::to_string(size) + ")",
                         context("connect"));
    const auto hosts = all_gather_values(*this, detail::posix::host_id());
    const auto& own = hosts[static_cast<std::size_t>(rank)];
    local_size_ = static_cast<int>(std::count(hosts.begin(), hosts.end(), own));
    local_rank_ = static_cast<int>(std::count(hosts.begin(), hosts.begin() + rank, own));
  }

  /// @throws TimeoutError if a rank does not enter the call
  void barrier() { static_cast<void>(all_gather_values(*this, char{})); }
  /// @throws TimeoutError if the root does not enter the call; MismatchError if it passes another number of bytes
  void broadcast(std::span<std::byte> bytes, int root) {
    detail::check_control_root(root, rank_, size_);
    ++calls_;
    if (rank_ == root) return publish(bytes);
    read(root, bytes, "broadcast");
  }
  /// @throws TimeoutError if a rank does not enter the call; MismatchError if it passes another number of bytes
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
    detail::check_control_gather(send.size(), receive.size(), rank_, size_);
    ++calls_;
    publish(send);
    for (int other = 0; other < size_; ++other) {
      const auto block = receive.subspan(static_cast<std::size_t>(other) * send.size(), send.size());
      if (other == rank_)
        std::copy(send.begin(), send.end(), block.begin());
      else
        read(other, block, "all_gather");
    }
  }

 private:
  [[nodiscard]] ErrorContext context(const char* operation) const noexcept {
    return {.operation = operation, .backend = "connector", .rank = rank_, .size = size_};
  }
  [[nodiscard]] std::string key(int rank) const {
    return prefix_ + std::to_string(calls_) + "/" + std::to_string(rank);
  }
  void publish(std::span<const std::byte> bytes) {
    store_.set(key(rank_), std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  void read(int other, std::span<std::byte> bytes, const char* operation) {
    using std::chrono::milliseconds;
    const auto limit = deadline_.unlimited() ? std::chrono::hours(24 * 365) : deadline_.limit();
    const std::optional<std::string> value = store_.get(key(other), std::chrono::ceil<milliseconds>(limit));
    if (!value)
      throw TimeoutError(
          "timed out after " + deadline_.to_string() + ": rank " + std::to_string(other) + " did not enter this call",
          context(operation));
    if (value->size() != bytes.size())
      throw MismatchError("rank " + std::to_string(other) + " passes " + std::to_string(value->size()) +
                              " bytes, this rank " + std::to_string(bytes.size()),
                          context(operation));
    std::ranges::copy(std::as_bytes(std::span(*value)), bytes.begin());
  }

  Store store_;
  std::string prefix_;
  Timeout deadline_;
  std::uint64_t calls_ = 0;
};

}  // namespace distx::inline DISTX_ABI
