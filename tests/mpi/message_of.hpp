// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <string>

/// Returns the message of the exception that `f` throws; its type must be E.
template <class E, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another type: ") + error.what();
  }
  return "nothing was thrown";
}
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
