// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>
#include <utility>

// Every function of a vendor's goes through here: it is counted, may be told to fail, and says by an exception what is
// wrong with its arguments.
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

/// Counts a call, waits where it is to hang, and says what it was told to return.
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
