// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <chrono>
#include <thread>

#include "distx/connect/detail/name_ranks.hpp"
#include "distx/core/detail/wait.hpp"

namespace distx::inline DISTX_ABI::detail::file {

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

}  // namespace distx::inline DISTX_ABI::detail::file
