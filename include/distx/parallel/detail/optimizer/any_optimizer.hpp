// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>
#include <functional>
#include <string>

#include "distx/core/detail/plain_name.hpp"
#include "distx/core/detail/shortest.hpp"
#include "distx/parallel/detail/optimizer/shard_update_of.hpp"
#include "distx/parallel/parameter_options.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Calls f(name, value) for each member that has the usual name of a hyperparameter.
template <class O, class F>
void each_hyperparameter(const O& o, F&& f) {
  if constexpr (requires { o.momentum; }) f(".momentum", o.momentum);
  if constexpr (requires { o.dampening; }) f(".dampening", o.dampening);
  if constexpr (requires { o.nesterov; }) f(".nesterov", o.nesterov);
  if constexpr (requires { o.beta; }) f(".beta", o.beta);
  if constexpr (requires { o.beta1; }) f(".beta1", o.beta1);
  if constexpr (requires { o.beta2; }) f(".beta2", o.beta2);
  if constexpr (requires { o.beta3; }) f(".beta3", o.beta3);
  if constexpr (requires { o.alpha; }) f(".alpha", o.alpha);
  if constexpr (requires { o.rho; }) f(".rho", o.rho);
  if constexpr (requires { o.epsilon; }) f(".epsilon", o.epsilon);
  if constexpr (requires { o.weight_decay; }) f(".weight_decay", o.weight_decay);
  if constexpr (requires { o.iterations; }) f(".iterations", o.iterations);
  if constexpr (requires { o.matrices; }) f(".matrices", o.matrices);
  if constexpr (requires { o.others; }) f(".others", o.others);
}

/// Returns an optimizer's type and hyperparameters as text, for the ranks to compare: what its `to_string()` returns,
/// or else its members with the usual names.
template <class O>
[[nodiscard]] std::string describe_optimizer(const O& optimizer) {
  std::string text = type_name<O>();
  if constexpr (requires {
                  { optimizer.to_string() } -> std::convertible_to<std::string>;
                }) {
    return text + " " + std::string(optimizer.to_string());
  } else {
    std::string members;
    each_hyperparameter(optimizer, [&]<class V>(const char* name, const V& value) {
      members += (members.empty() ? "" : ", ") + std::string(name) + " = ";
      if constexpr (std::same_as<V, bool>)
        members += value ? "true" : "false";
      else if constexpr (std::integral<V>)
        members += std::to_string(value);
      else if constexpr (std::floating_point<V>)
        members += shortest(static_cast<double>(value));
      else
        members += describe_optimizer(value);
    });
    return text + "{" + members + "}";
  }
}

/// The parameters that an optimizer needs whole on one rank.
enum class TakesWhole { none, matrices, all };

/// A type-erased optimizer, before there are shards.
template <MemorySpace Space>
struct AnyOptimizer {
  std::string description;  ///< its type and hyperparameters
  bool decays;              ///< whether a group can set a decay
  TakesWhole takes_whole;
  std::function<void()> validate;
  std::function<std::unique_ptr<ShardUpdate<Space>>(
      const ShardDescription&, const std::shared_ptr<OptimizerWorkspace<Space>>&, const StateAllocator<Space>&)>
      make_update;

  [[nodiscard]] bool takes(const ParameterOptions& parameter) const noexcept {
    return takes_whole != TakesWhole::none && parameter.rows > 0;
  }
};

/// Borrows the optimizer until the last update is made.
template <MemorySpace Space, ShardableOptimizer Optimizer>
[[nodiscard]] AnyOptimizer<Space> any_optimizer(const Optimizer& optimizer) {
  return {describe_optimizer(optimizer), DecaysWeights<Optimizer>,
          is_mixed<Optimizer>          ? TakesWhole::matrices
          : MatrixOptimizer<Optimizer> ? TakesWhole::all
                                       : TakesWhole::none,
          [&optimizer] { validate_optimizer(optimizer); },
          [&optimizer](const ShardDescription& shard, const std::shared_ptr<OptimizerWorkspace<Space>>& workspace,
                       const StateAllocator<Space>& allocate) {
            return make_shard_update<Space>(optimizer, shard, workspace, allocate);
          }};
}

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
