// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Counts the functions and headers between a program's all_reduce and Gloo, in a build without optimization.
#include <sys/uio.h>

#include <utility>
#include <vector>

#include <distx/comm.hpp>
#include <distx/gloo.hpp>
#include <distx/threads.hpp>

#include "stack_walk.hpp"

namespace {

thread_local test::StackWalk* walk = nullptr;  // of this thread's next write to a socket

}  // namespace

// Replaces the system's function, with which Gloo sends.
extern "C" ssize_t writev(int file, const iovec* parts, int count) {
  static const auto real = reinterpret_cast<decltype(&writev)>(dlsym(RTLD_NEXT, "writev"));
  if (auto* const into = std::exchange(walk, nullptr)) *into = test::walk_stack();
  return real(file, parts, count);
}

int main() {
  test::StackWalk small, large;
  distx::spawn(distx::threads(2), [&](distx::ThreadConnector& connector) {
    distx::GlooCommunicator comm(connector);
    std::vector<float> few(4, 1.0f), many(1 << 20, 1.0f);
    for (const auto& [values, into] : {std::pair{&few, &small}, std::pair{&many, &large}}) {
      distx::all_reduce(comm, *values, distx::sum);
      if (comm.rank() == 0) walk = into;
      distx::all_reduce(comm, *values, distx::sum);
    }
  });
  const bool passed = is_within(small, "small operands, to Gloo", 9, 10);
  return is_within(large, "large operands, to Gloo", 9, 10) && passed ? 0 : 1;
}
