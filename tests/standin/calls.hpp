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

/// Aborts the process with a message if `was_there`, for a handle that is not there any more: CUDA does not check
/// handles that were destroyed, and crashes, so code that ignores errors must not get by.
void forbid_destroyed(const char* what, bool was_there);

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
