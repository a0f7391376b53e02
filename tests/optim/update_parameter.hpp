// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>

#include <distx/memory/buffer.hpp>
#include <distx/memory/fixed_point.hpp>
#include <distx/optim/mixed.hpp>
#include <distx/optim/two_pass_optimizer.hpp>

namespace reference {

using namespace distx;

/// Updates one whole parameter on one process, for any kind of optimizer: the reference for sharded updates.
///
/// `weight`, `gradient` and each state have the same length; the states begin as zeros.
template <ElementwiseOptimizer Optimizer, FloatingElement T>
void update_parameter(const Optimizer& optimizer, const Step& step, Span<T> weight, Span<const T> gradient,
                      const std::array<Span<accumulator_t<T>>, Optimizer::states>& state) {
  fused_update(HostStream{}, optimizer, step, weight, gradient, state);
}

template <NormOptimizer Optimizer, FloatingElement T>
void update_parameter(const Optimizer& optimizer, const Step& step, Span<T> weight, Span<const T> gradient,
                      const std::array<Span<accumulator_t<T>>, Optimizer::states>& state) {
  const HostStream stream;
  const Buffer<accumulator_t<T>> direction(weight.size());
  fused_direction(stream, optimizer, step, weight, gradient, direction.span(), state);
  const double factor = Optimizer::trust(fixed_point_norm(stream, weight), fixed_point_norm(stream, direction.span()));
  fused_apply(stream, optimizer, step, factor, weight, direction.span());
}

/// @throws MismatchError where the parameter is no such matrix
template <MatrixOptimizer Optimizer, FloatingElement T>
void update_parameter(const Optimizer& optimizer, const Step& step, MatrixShape shape, Span<T> weight,
                      Span<const T> gradient, const std::array<Span<accumulator_t<T>>, Optimizer::states>& state) {
  if (shape.size() != weight.size() || weight.empty())
    throw InvalidArgument("a parameter of " + std::to_string(weight.size()) + " elements is no matrix of " +
                              std::to_string(shape.rows) + " x " + std::to_string(shape.columns),
                          {.operation = "update_parameter"});
  const HostStream stream;
  const Buffer<accumulator_t<T>> direction(weight.size());
  const Buffer<accumulator_t<T>> scratch(Optimizer::scratch(shape));
  fused_direction(stream, optimizer, step, weight, gradient, direction.span(), state);
  const double factor = optimizer.transform(stream, shape, direction.span(), scratch.span());
  fused_apply(stream, optimizer, step, factor, weight, direction.span());
}

/// Of a mixture: as a matrix where a shape is given, else element by element.
template <class Matrices, class Others, FloatingElement T>
void update_parameter(const Mixed<Matrices, Others>& optimizer, const Step& step, std::optional<MatrixShape> matrix,
                      Span<T> weight, Span<const T> gradient,
                      const std::array<Span<accumulator_t<T>>, Mixed<Matrices, Others>::states>& state) {
  std::array<Span<accumulator_t<T>>, Matrices::states> first;
  std::array<Span<accumulator_t<T>>, Others::states> second;
  std::copy_n(state.begin(), first.size(), first.begin());
  std::copy_n(state.begin(), second.size(), second.begin());
  if (matrix)
    update_parameter(optimizer.matrices, step, *matrix, weight, gradient, first);
  else
    update_parameter(optimizer.others, step, weight, gradient, second);
}

}  // namespace reference
