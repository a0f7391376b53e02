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

[[nodiscard]] inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline void write(const std::string& received, std::span<std::byte> bytes) {
  if (!received.empty()) std::memcpy(bytes.data(), received.data(), std::min(received.size(), bytes.size()));
}

}  // namespace control

DISTX_INLINE ControlConnector::ControlConnector(std::shared_ptr<control::ControlGroup> group) noexcept
    : RankNumbers(*group), group_(std::move(group)) {}

DISTX_INLINE void ControlConnector::barrier() { (void)group_->call({.call = "barrier"}, group_->where("barrier")); }
DISTX_INLINE void ControlConnector::broadcast(std::span<std::byte> bytes, int root) {
  check_control_root(root, rank(), size());
  const auto context = group_->where("broadcast");
  group_->check_length(bytes.size(), context);
  control::write(
      group_->call({.call = "broadcast of " + std::to_string(bytes.size()) + " bytes from rank " + std::to_string(root),
                    .result = control::CallResult::of_root,
                    .root = root,
                    .bytes = rank() == root ? control::text_of(bytes) : std::string()},
                   context),
      bytes);
}
DISTX_INLINE void ControlConnector::all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
  check_control_gather(send.size(), receive.size(), rank(), size());
  const auto context = group_->where("all_gather");
  group_->check_length(receive.size(), context);
  control::write(group_->call({.call = "all_gather of " + std::to_string(send.size()) + " bytes",
                               .result = control::CallResult::of_all,
                               .bytes = control::text_of(send)},
                              context),
                 receive);
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
