// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>

#include "distx/connect/connector.hpp"
#include "distx/connect/failure_channel.hpp"

namespace distx {

namespace detail {

inline void check_control_root(int root, int rank, int size) {
  if (root < 0 || root >= size)
    throw MismatchError("root " + std::to_string(root) + " is no rank: ranks are 0 to " + std::to_string(size - 1),
                        {.operation = "broadcast", .backend = "connector", .rank = rank, .size = size});
}

inline void check_control_gather(std::size_t send, std::size_t receive, int rank, int size) {
  if (receive != send * static_cast<std::size_t>(size))
    throw MismatchError("receive has " + std::to_string(receive) + " bytes, " + std::to_string(size) + " ranks send " +
                            std::to_string(send) + " each",
                        {.operation = "all_gather", .backend = "connector", .rank = rank, .size = size});
}

}  // namespace detail

/// A world of one: no launcher, nobody to reach.
class SelfConnector {
 public:
  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 1; }
  [[nodiscard]] int local_rank() const noexcept { return 0; }
  [[nodiscard]] int local_size() const noexcept { return 1; }
  [[nodiscard]] int root_rank() const noexcept { return 0; }
  void barrier() noexcept {}
  void broadcast(std::span<std::byte>, int root) { detail::check_control_root(root, 0, 1); }
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
    detail::check_control_gather(send.size(), receive.size(), 0, 1);
    std::copy(send.begin(), send.end(), receive.begin());
  }
  [[nodiscard]] std::shared_ptr<FailureChannel> failure_channel() const noexcept { return notices_; }

 private:
  std::shared_ptr<FailureChannel> notices_ = std::make_shared<detail::LocalFailureChannel>();
};

}  // namespace distx
