// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstring>
#include <string>

#include "distx/connect/detail/thread_group.hpp"
#include "distx/connect/threads.hpp"
#include "distx/core/detail/inline.hpp"

namespace distx {

DISTX_INLINE int ThreadConnector::size() const noexcept { return group_->size(); }
DISTX_INLINE int ThreadConnector::local_size() const noexcept { return group_->size(); }
DISTX_INLINE void ThreadConnector::barrier() {
  group_->exchange(rank_, {}, "barrier", [](int, auto) {});
}
DISTX_INLINE void ThreadConnector::broadcast(std::span<std::byte> bytes, int root) {
  detail::check_control_root(root, rank_, size());
  std::size_t sent = 0;
  group_->exchange(rank_, bytes, "broadcast", [&](int rank, std::span<const std::byte> source) {
    if (rank != root) return;
    sent = source.size();
    if (rank != rank_ && sent == bytes.size()) std::copy(source.begin(), source.end(), bytes.begin());
  });
  if (sent != bytes.size()) throw different("broadcast", root, sent, bytes.size());
}
DISTX_INLINE void ThreadConnector::all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
  detail::check_control_gather(send.size(), receive.size(), rank_, size());
  int odd = -1;
  std::size_t odd_size = 0;
  group_->exchange(rank_, send, "all_gather", [&](int rank, std::span<const std::byte> source) {
    if (source.size() != send.size()) {
      odd = rank;
      odd_size = source.size();
    } else if (!source.empty()) {
      std::memmove(receive.data() + static_cast<std::size_t>(rank) * send.size(), source.data(), source.size());
    }
  });
  if (odd >= 0) throw different("all_gather", odd, odd_size, send.size());
}
DISTX_INLINE ThreadConnector ThreadConnector::shrink(Timeout deadline) {
  auto [group, rank] = group_->shrink(rank_, deadline);
  return {std::move(group), rank};
}
DISTX_INLINE std::shared_ptr<FailureChannel> ThreadConnector::failure_channel() const noexcept { return group_; }
DISTX_INLINE MismatchError ThreadConnector::different(std::string_view operation, int other, std::size_t theirs,
                                                      std::size_t mine) const {
  return MismatchError("rank " + std::to_string(other) + " passes " + std::to_string(theirs) + " bytes, this rank " +
                           std::to_string(mine),
                       {.operation = operation, .backend = "threads", .rank = rank_, .size = size()});
}

}  // namespace distx
