// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "distx/core/detail/wait.hpp"

namespace distx::detail::file {

/// Waits until `ready()`, with pauses that grow to five milliseconds.
///
/// `stopped()`, which may cost more than `ready()` and may throw, is called once the wait has become long.
template <class Ready, class Stopped>
WaitEnd poll_until(const Deadline& deadline, Ready&& ready, Stopped&& stopped) {
  using std::chrono::microseconds;
  for (microseconds pause(50);; pause = std::min(2 * pause, microseconds(5000))) {
    if (ready()) return WaitEnd::ready;
    if (pause > microseconds(500) && stopped()) return ready() ? WaitEnd::ready : WaitEnd::stopped;
    if (deadline.expired()) return ready() ? WaitEnd::ready : WaitEnd::expired;
    std::this_thread::sleep_for(pause);
  }
}

/// Returns the subject of a message: `rank 1 of 5`, `ranks 1, 2 and 4 of 5`, `ranks 1, 2, … (90 ranks) of 100`.
[[nodiscard]] inline std::string name_ranks(const std::vector<int>& ranks, int size) {
  constexpr std::size_t most = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), most); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  if (ranks.size() > most) text += ", … (" + std::to_string(ranks.size()) + " ranks)";
  return text + " of " + std::to_string(size);
}

}  // namespace distx::detail::file
