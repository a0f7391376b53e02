// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/core/span.hpp"

namespace distx {

/// The part of a parameter that a rank updates, in memory.
template <MemorySpace Space>
struct Segment {
  std::size_t parameter = 0;  ///< its place in the list that the training was made of
  std::size_t offset = 0;     ///< in the parameter, in elements
  Span<AnyElement, Space> weight{};
  Span<AnyElement, Space> gradient{};
  double scale = 1;  ///< multiplies the gradient: with Precision, short ones are left as they came

  /// @pre T is the parameter's element type
  template <FloatingElement T>
  [[nodiscard]] Span<T, Space> weights() const noexcept {
    return {static_cast<T*>(weight.data()), weight.size()};
  }
  template <FloatingElement T>
  [[nodiscard]] Span<const T, Space> gradients() const noexcept {
    return {static_cast<const T*>(gradient.data()), gradient.size()};
  }
};

}  // namespace distx
