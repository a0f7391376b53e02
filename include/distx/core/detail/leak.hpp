// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <new>
#include <utility>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Never frees its contents: for memory that a vendor's library may access until the process exits.
template <class T>
void leak(T value) noexcept {
  static_cast<void>(new (std::nothrow) T(std::move(value)));
}

}  // namespace distx::inline DISTX_ABI::detail
