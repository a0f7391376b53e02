// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>

#include "distx/optim/mixed.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The transformation of a MatrixOptimizer between its two passes, type-erased; empty for other optimizers.
template <MemorySpace Space>
struct MatrixTransform {
  std::size_t (*scratch)(MatrixShape) = nullptr;  ///< the elements that `transform` needs
  /// Transforms a whole direction, of float or double, and returns the factor of the second pass.
  std::function<double(typename Space::stream, MatrixShape, Span<AnyElement, Space>, Span<std::byte, Space>)>
      transform{};
};

template <MemorySpace Space, ShardableOptimizer Optimizer>
[[nodiscard]] MatrixTransform<Space> matrix_transform([[maybe_unused]] const Optimizer& optimizer) {
  if constexpr (HostAccessible<Space> && is_mixed<Optimizer>) {
    return matrix_transform<Space>(optimizer.matrices);
  } else if constexpr (HostAccessible<Space> && MatrixOptimizer<Optimizer>) {
    return {[](MatrixShape shape) -> std::size_t { return Optimizer::scratch(shape); },
            [optimizer](typename Space::stream after, MatrixShape shape, Span<AnyElement, Space> direction,
                        Span<std::byte, Space> scratch) -> double {
              const auto as = [&]<class A>(std::type_identity<A>) -> double {
                return optimizer.transform(
                    after, shape, Span<A, Space>(static_cast<A*>(direction.data()), direction.size()),
                    Span<A, Space>(reinterpret_cast<A*>(scratch.data()), Optimizer::scratch(shape)));
              };
              if (direction.type() == ElementType::f64) return as(std::type_identity<double>());
              return as(std::type_identity<float>());
            }};
  } else {
    return {};
  }
}

}  // namespace distx::inline DISTX_ABI::detail
