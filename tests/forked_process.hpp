// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace test {

/// Returns what `f()` returns in a process that is forked from this one, from 0 to 200; -1 if it ends otherwise.
template <class F>
int in_forked_process(F&& f) {
  const pid_t process = ::fork();
  if (process == 0) {
    int result = 201;
    try {
      result = f();
    } catch (...) {  // 201 is not a result
    }
    ::syscall(SYS_exit_group, result);  // unlike _exit, under TSan too: it reports the parent's threads as leaked here
  }
  int status = 0;
  if (process < 0 || ::waitpid(process, &status, 0) != process || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status) > 200 ? -1 : WEXITSTATUS(status);
}

}  // namespace test
