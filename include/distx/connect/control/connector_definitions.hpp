// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstring>
#include <string>

#include "distx/connect/control/connector.hpp"
#include "distx/connect/control/group.hpp"
#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

namespace control {

/// Enters a call.
/// @param send  what this rank contributes
/// @param receive  what the result is written to
inline void enter(ControlGroup& group, std::string_view operation, CallPart part, std::span<const std::byte> send = {},
                  std::span<std::byte> receive = {}) {
  const auto context = group.where(operation);
  group.check_length(receive.size(), context);
  part.bytes.assign(reinterpret_cast<const char*>(send.data()), send.size());
  const auto result = group.call(std::move(part), context);
  if (!result.empty()) std::memcpy(receive.data(), result.data(), std::min(result.size(), receive.size()));
}

}  // namespace control

DISTX_INLINE ControlConnector::ControlConnector(std::shared_ptr<control::ControlGroup> group) noexcept
    : RankNumbers(*group), group_(std::move(group)) {}

DISTX_INLINE void ControlConnector::barrier() { control::enter(*group_, "barrier", {.call = "barrier"}); }
DISTX_INLINE void ControlConnector::broadcast(std::span<std::byte> bytes, int root) {
  check_control_root(root, rank(), size());
  const auto call = "broadcast of " + std::to_string(bytes.size()) + " bytes from rank " + std::to_string(root);
  control::enter(*group_, "broadcast", {.call = call, .result = control::CallResult::of_root, .root = root},
                 rank() == root ? bytes : std::span<std::byte>(), bytes);
}
DISTX_INLINE void ControlConnector::all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
  check_control_gather(send.size(), receive.size(), rank(), size());
  const auto call = "all_gather of " + std::to_string(send.size()) + " bytes";
  control::enter(*group_, "all_gather", {.call = call, .result = control::CallResult::of_all}, send, receive);
}
DISTX_INLINE std::shared_ptr<FailureChannel> ControlConnector::failure_channel() const noexcept { return group_; }

DISTX_INLINE std::shared_ptr<control::ControlGroup> ControlConnector::shrunk(const Timeout& deadline) {
  return group_->shrink(deadline);
}
DISTX_INLINE std::shared_ptr<control::ControlGroup> ControlConnector::grown() {
  auto larger = group_->grow();
  return larger ? larger : group_;
}

}  // namespace distx::inline DISTX_ABI::detail
