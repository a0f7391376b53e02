// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace test {

/// Returns what this process writes to stderr while `f` runs, with DISTX_LOG=info.
template <class F>
std::string logged(F&& f) {
  std::FILE* const file = std::tmpfile();
  if (file == nullptr) throw std::runtime_error("no temporary file");
  std::fflush(stderr);
  const int before = ::dup(STDERR_FILENO);
  ::dup2(::fileno(file), STDERR_FILENO);
  ::setenv("DISTX_LOG", "info", 1);
  f();
  ::unsetenv("DISTX_LOG");
  std::fflush(stderr);
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  std::string text;
  std::rewind(file);
  for (int next = std::fgetc(file); next != EOF; next = std::fgetc(file)) text += static_cast<char>(next);
  std::fclose(file);
  return text;
}

}  // namespace test
