// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstddef>
#include <span>

namespace test {

/// The smallest custom Connector: one rank, without a failure channel.
struct Minimal {
  int rank() const { return 0; }
  int size() const { return 1; }
  int local_rank() const { return 0; }
  int local_size() const { return 1; }
  int root_rank() const { return 0; }
  void barrier() {}
  void broadcast(std::span<std::byte>, int) {}
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
    std::copy(send.begin(), send.end(), receive.begin());
  }
};

}  // namespace test
