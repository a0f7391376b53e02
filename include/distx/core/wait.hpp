// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <thread>

#include "distx/core/deadline.hpp"

namespace distx::detail {

enum class WaitEnd { ready, stopped, expired };

/// Waits until `ready()`: spins briefly, then yields; looks at `stopped()` and the deadline once a round of yields.
///
/// With more ranks than cores, spinning long starves the rank that is waited for.
template <class Ready, class Stopped>
WaitEnd wait_until(const Timeout& timeout, Ready&& ready, Stopped&& stopped) {
  for (int spin = 0; spin < 20; ++spin)
    if (ready()) return WaitEnd::ready;
  const Deadline deadline(timeout);
  for (;;) {
    for (int round = 0; round < 16; ++round) {
      if (ready()) return WaitEnd::ready;
      std::this_thread::yield();
    }
    if (stopped()) return ready() ? WaitEnd::ready : WaitEnd::stopped;
    if (deadline.expired()) return ready() ? WaitEnd::ready : WaitEnd::expired;
  }
}

}  // namespace distx::detail
