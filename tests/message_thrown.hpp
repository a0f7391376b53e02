// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <string>

#include "distx/core/error.hpp"

namespace test {

/// The words of the `E` that `f` throws, empty where nothing is thrown; anything else is passed on.
template <class E = distx::Error, class F>
std::string message_thrown(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return {};
}

}  // namespace test
