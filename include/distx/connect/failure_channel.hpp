// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI {

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

/// Returns a connector's failure channel; null if it has none.
template <class C>
[[nodiscard]] std::shared_ptr<FailureChannel> failure_channel_of(const C& connector) {
  if constexpr (HasFailureChannel<C>) return connector.failure_channel();
  return nullptr;
}

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
