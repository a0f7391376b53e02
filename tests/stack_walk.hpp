// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <dlfcn.h>
#include <execinfo.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>

// The functions between a program's call and a function of a vendor that the program replaces.
namespace test {

/// The functions of distx above a vendor's, and the headers that they are written in.
struct StackWalk {
  std::size_t functions = 0;
  std::set<std::string> headers{};
};

/// Walks the stack from the caller up: passes the vendor's functions, and counts distx's. The program is linked with
/// -rdynamic and has debug information, from which addr2line reads the headers.
inline StackWalk walk_stack() {
  std::array<void*, 64> addresses{};
  const int depth = backtrace(addresses.data(), static_cast<int>(addresses.size()));
  char** const names = backtrace_symbols(addresses.data(), depth);
  StackWalk walk;
  std::string command = "addr2line -i -e /proc/" + std::to_string(getpid()) + "/exe";
  for (int i = 0; i < depth; ++i) {
    const bool ours = std::string_view(names[i]).find("distx") != std::string_view::npos;
    if (!ours && walk.functions > 0) break;
    if (!ours) continue;
    ++walk.functions;
    Dl_info image{};
    dladdr(addresses[static_cast<std::size_t>(i)], &image);
    const auto offset =
        static_cast<char*>(addresses[static_cast<std::size_t>(i)]) - static_cast<char*>(image.dli_fbase);
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), " %#tx", offset - 1);  // in the call, not after it
    command += text.data();
  }
  std::free(names);
  if (std::FILE* const lines = popen(command.c_str(), "r")) {
    std::array<char, 4096> line{};
    while (std::fgets(line.data(), line.size(), lines) != nullptr) {
      const std::string_view text(line.data());
      const auto begin = text.find("distx/"), end = text.find(".hpp:");
      if (begin != text.npos && end != text.npos) walk.headers.emplace(text.substr(begin, end + 4 - begin));
    }
    pclose(lines);
  }
  return walk;
}

/// Prints a walk; returns whether it passes something, and no more than this.
inline bool is_within(const StackWalk& walk, const char* what, std::size_t most_functions, std::size_t most_headers) {
  std::printf("%s: %zu functions of distx, in %zu headers\n", what, walk.functions, walk.headers.size());
  const bool found = walk.functions > 0 && !walk.headers.empty();
  return found && walk.functions <= most_functions && walk.headers.size() <= most_headers;
}

}  // namespace test
