// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "distx/core/detail/wait.hpp"

namespace distx::file {

/// Waits until `ready()`, with pauses that grow to five milliseconds: others have the processor meanwhile.
///
/// `stopped()`, which may cost more than `ready()` and may throw, is asked once the wait has become long.
template <class Ready, class Stopped>
distx::detail::WaitEnd wait_until(const Deadline& deadline, Ready&& ready, Stopped&& stopped) {
  using distx::detail::WaitEnd;
  using std::chrono::microseconds;
  for (microseconds pause(50);; pause = std::min(2 * pause, microseconds(5000))) {
    if (ready()) return WaitEnd::ready;
    if (pause > microseconds(500) && stopped()) return ready() ? WaitEnd::ready : WaitEnd::stopped;
    if (deadline.expired()) return ready() ? WaitEnd::ready : WaitEnd::expired;
    std::this_thread::sleep_for(pause);
  }
}

/// The beginning of a sentence on ranks: `rank 1 of 5 has`, `ranks 1, 2 and 4 of 5 have`.
[[nodiscard]] inline std::string of_ranks(const std::vector<int>& ranks, int size) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  const bool one = ranks.size() == 1;
  return (one ? "rank " : "ranks ") + text + " of " + std::to_string(size) + (one ? " has" : " have");
}

}  // namespace distx::file
