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

/// Tells all ranks of a connector of a failure, while none of them waits for another.
///
/// For what has no control channel of its own: a communicator whose ranks have agreed on an identity tells its failure
/// here, and looks here for one from time to time. Both calls may come from any thread, at any time, and wait for no
/// other rank. What keeps a FailureChannel keeps the connection alive.
class FailureChannel {
 public:
  virtual ~FailureChannel() = default;

  /// Tells every rank, this one too; the first reason that is told for an identity stays.
  virtual void publish(std::uint64_t identity, const std::string& reason) noexcept = 0;
  /// What has been told, or what is known to have ended a rank: that is heard under every identity.
  [[nodiscard]] virtual std::optional<std::string> poll(std::uint64_t identity) = 0;
};

/// A connector that may have notices; null where it has none.
template <class C>
concept HasFailureChannel = requires(const C& connector) {
  { connector.failure_channel() } -> std::same_as<std::shared_ptr<FailureChannel>>;
};

namespace detail {

/// The notices of ranks that share memory.
class LocalFailureChannel final : public FailureChannel {
 public:
  void publish(std::uint64_t identity, const std::string& reason) noexcept override {
    const std::lock_guard lock(mutex_);
    try {
      told_.emplace(identity, reason);
    } catch (...) {
      lost_ = true;  // there is no memory for the notice: it is heard without its words, and by all
    }
  }
  [[nodiscard]] std::optional<std::string> poll(std::uint64_t identity) override {
    const std::lock_guard lock(mutex_);
    if (const auto found = told_.find(identity); found != told_.end()) return found->second;
    if (lost_) return "there was no memory left to say why";
    return std::nullopt;
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::string> told_;
  bool lost_ = false;
};

/// Those of a connector, null where it has none.
template <class C>
[[nodiscard]] std::shared_ptr<FailureChannel> failure_channel_of(const C& connector) {
  if constexpr (HasFailureChannel<C>) return connector.failure_channel();
  return nullptr;
}

}  // namespace detail

}  // namespace distx
