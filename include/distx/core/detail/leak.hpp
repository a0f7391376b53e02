// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <new>
#include <utility>

namespace distx::detail {

/// Never frees its contents: for memory that a vendor's library may access until the process exits.
template <class T>
void leak(T value) noexcept {
  static_cast<void>(new (std::nothrow) T(std::move(value)));
}

}  // namespace distx::detail
