// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/core/span.hpp"

namespace distx::inline DISTX_ABI {

/// A part of one parameter that this rank updates, returned by `DataParallel::owned`; borrows the training's memory.
template <MemorySpace Space>
struct Fragment {
  std::size_t parameter = 0;  ///< its index in the list that the training was constructed with
  std::size_t offset = 0;     ///< of the part in the parameter, in elements
  Span<AnyElement, Space> weight{};
  Span<AnyElement, Space> gradient{};
  double scale = 1;  ///< multiply the gradient by this: not 1 only for 16-bit gradients with Precision

  /// Returns the weights as elements of T.
  /// @pre T is the element type of `weight`
  template <FloatingElement T>
  [[nodiscard]] Span<T, Space> weights() const noexcept {
    return {static_cast<T*>(weight.data()), weight.size()};
  }
  /// Returns the gradients as elements of T.
  /// @pre T is the element type of `gradient`
  template <FloatingElement T>
  [[nodiscard]] Span<const T, Space> gradients() const noexcept {
    return {static_cast<const T*>(gradient.data()), gradient.size()};
  }
};

}  // namespace distx::inline DISTX_ABI
