// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <optional>
#include <vector>

#include "distx/comm/detail/in_order.hpp"

// The streams that a training's calls are given, and the order among them. Empty for memory spaces without streams.
namespace distx::inline DISTX_ABI::detail {

/// A set of streams.
template <MemorySpace Space>
class Streams {
 public:
  using stream = typename Space::stream;

  void add(stream one) {
    if constexpr (!done_at_return<Space>)
      if (!has(one)) streams_.push_back(one);
  }
  [[nodiscard]] bool has(stream one) const {
    if constexpr (done_at_return<Space>)
      return true;
    else
      return std::find(streams_.begin(), streams_.end(), one) != streams_.end();
  }
  /// Makes `later` wait for what is enqueued on these streams.
  void before(stream later) const {
    for (const auto one : streams_) order<Space>(one, later);
  }
  void clear() noexcept { streams_.clear(); }

 private:
  std::vector<stream> streams_;
};

/// Orders each call of a training after the earlier calls that concerned all of it, on any streams.
template <MemorySpace Space>
class CallOrder {
 public:
  using stream = typename Space::stream;

  void enter(stream now) {
    if (!last_ || ordered_.has(now)) return;
    order<Space>(*last_, now);
    ordered_.add(now);
  }
  /// Ends a call that concerned all of the training.
  void leave(stream now) {
    last_ = now;
    ordered_.clear();
    ordered_.add(now);
  }

 private:
  std::optional<stream> last_;
  Streams<Space> ordered_;
};

/// Blocks the host until everything that this rank has enqueued, on any stream, is complete.
template <MemorySpace Space>
void synchronize_all() {
  if constexpr (requires { Space::stream::synchronize_all(); }) Space::stream::synchronize_all();
}

}  // namespace distx::inline DISTX_ABI::detail
