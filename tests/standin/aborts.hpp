// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace standin {

/// Returns whether `f` aborts its process, in a copy of this one. No stream of it has work.
template <class F>
[[nodiscard]] bool aborts(F&& f) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);  // without a report of the test's framework
    static_cast<void>(f());
    std::_Exit(0);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return false;
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

}  // namespace standin
