// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <optional>
#include <vector>

#include "distx/comm/detail/in_order.hpp"

// The streams that a training's calls are given, and the order among them. Nothing where work is done at return.
namespace distx::detail {

/// Streams on which something is in use.
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
  /// What is enqueued on `later` from now on begins after all that was enqueued on these.
  void before(stream later) const {
    for (const auto one : streams_) order<Space>(one, later);
  }
  void clear() noexcept { streams_.clear(); }

 private:
  std::vector<stream> streams_;
};

/// Lets each call of a training come behind those before it that were about all of the training, on whatever streams.
template <MemorySpace Space>
class CallOrder {
 public:
  using stream = typename Space::stream;

  void enter(stream now) {
    if constexpr (!done_at_return<Space>) {
      if (!last_ || behind_.has(now)) return;
      order<Space>(*last_, now);
      behind_.add(now);
    }
  }
  /// The call that ends was about all of it.
  void leave(stream now) {
    if constexpr (!done_at_return<Space>) {
      last_ = now;
      behind_.clear();
      behind_.add(now);
    }
  }

 private:
  std::optional<stream> last_;
  Streams<Space> behind_;
};

/// Blocks the host until all that this rank has enqueued, on any stream, is done.
template <MemorySpace Space>
void synchronize_all() {
  if constexpr (requires { Space::stream::synchronize_all(); }) Space::stream::synchronize_all();
}

}  // namespace distx::detail
