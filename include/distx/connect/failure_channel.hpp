// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace distx {

/// Notifies all ranks of a connector of a failure, without a collective call.
///
/// For a backend without control messages: its ranks agree on an identity for a communicator, publish
/// the communicator's failure under it, and poll from time to time. Both calls may be made from any thread at any time,
/// and wait for no other rank. The channel keeps the connection alive for as long as it is held.
class FailureChannel {
 public:
  virtual ~FailureChannel() = default;

  /// Notifies every rank, this one included; of several reasons for one identity the first stays.
  virtual void publish(std::uint64_t identity, const std::string& reason) noexcept = 0;
  /// Returns the reason that was published, if any; a rank that failed is reported under every identity.
  [[nodiscard]] virtual std::optional<std::string> poll(std::uint64_t identity) = 0;
};

/// A connector with a failure channel; `failure_channel()` may return null.
template <class C>
concept HasFailureChannel = requires(const C& connector) {
  { connector.failure_channel() } -> std::same_as<std::shared_ptr<FailureChannel>>;
};

namespace detail {

/// The failure channel of ranks in one process.
class LocalFailureChannel final : public FailureChannel {
 public:
  void publish(std::uint64_t identity, const std::string& reason) noexcept override {
    const std::lock_guard lock(mutex_);
    try {
      reasons_.emplace(identity, reason);
    } catch (...) {
      lost_ = true;  // without memory for the reason, every identity reports a failure
    }
  }
  [[nodiscard]] std::optional<std::string> poll(std::uint64_t identity) override {
    const std::lock_guard lock(mutex_);
    if (const auto found = reasons_.find(identity); found != reasons_.end()) return found->second;
    if (lost_) return "a failure whose reason could not be stored: out of memory";
    return std::nullopt;
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::string> reasons_;
  bool lost_ = false;
};

/// Returns a connector's failure channel; null if it has none.
template <class C>
[[nodiscard]] std::shared_ptr<FailureChannel> failure_channel_of(const C& connector) {
  if constexpr (HasFailureChannel<C>) return connector.failure_channel();
  return nullptr;
}

}  // namespace detail

}  // namespace distx
