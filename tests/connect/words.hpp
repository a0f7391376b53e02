// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace test {

/// The message of each rank.
using Messages = std::vector<std::string>;

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
/// Fails on ranks that are threads or processes, where doctest cannot check.
inline void expect(bool right, const std::string& what) {
  if (!right) throw std::runtime_error(what);
}
/// Returns the message of the error of type E that `f` throws.
template <class E, class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "no error";
}

}  // namespace test
