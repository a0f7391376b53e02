// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>
#include <utility>

// Every vendor function goes through here: its calls are counted, it can be made to fail, and it reports invalid
// arguments by an exception.
namespace standin {

/// Ends a vendor's function with a code.
template <class Code>
struct Failure {
  Code code;
};

template <class Code>
[[noreturn]] void fail(Code code) {
  throw Failure<Code>{code};
}
template <class Code>
void require(bool holds, Code code) {
  if (!holds) fail(code);
}

/// Counts a call, blocks while the function hangs, and returns the code that the call must return, if a test set one.
std::optional<int> counted(const char* function);

/// The name that counts the waits of the host.
inline constexpr const char* host_wait = "a wait of the host";

/// The return code of a vendor's function whose body is `f`.
template <class Code, class F>
Code called(const char* function, F&& f) {
  if (const auto told = counted(function)) return static_cast<Code>(*told);
  try {
    std::forward<F>(f)();
  } catch (const Failure<Code>& failure) {
    return failure.code;
  }
  return Code{};
}

}  // namespace standin
