// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <utility>

#include "distx/parallel/contiguous.hpp"
#include "distx/parallel/parameter_options.hpp"

namespace distx {

/// Borrows a weight and its gradient, which stay where they are and outlive the training; made by `ref`.
template <FloatingElement T, MemorySpace Space = Host>
struct ParameterRef {
  std::string name;
  Span<T, Space> weight;
  Span<T, Space> gradient;  ///< empty where the parameter is frozen and has none
  ParameterOptions options{};
};

/// Borrows some numbers that are not trained and that all ranks start with alike: running means, say. Made by
/// `buffer_ref`.
template <Transferable T, MemorySpace Space = Host>
struct BufferRef {
  std::string name;
  Span<T, Space> values;
};

/// A parameter whose memory is the user's: it is reduced and updated in place.
/// @throws MismatchError unless weight and gradient have as many elements, and at least one
template <ParameterArray Weight, ParameterArray Gradient>
[[nodiscard]] auto ref(std::string name, Weight&& weight, Gradient&& gradient, ParameterOptions options = {}) {
  const auto weights = detail::contiguous(weight);
  const auto gradients = detail::contiguous(gradient);
  using Weights = std::remove_const_t<decltype(weights)>;
  static_assert(std::same_as<Weights, std::remove_const_t<decltype(gradients)>>,
                "distx::ref: the weight and its gradient have elements of two types, or lie in two memory spaces");
  detail::check_parameter(name, weights.size(), options);
  if (weights.size() != gradients.size())
    throw MismatchError("'" + name + "' has " + std::to_string(weights.size()) + " elements, its gradient " +
                            std::to_string(gradients.size()),
                        {.operation = "ref"});
  return ParameterRef<typename Weights::element_type, typename Weights::space>{std::move(name), weights, gradients,
                                                                               options};
}

namespace detail {

/// Stands for the ParameterRef after an error that has been told, so that its user is not told another.
struct NoParameter {};

}  // namespace detail

/// The sentence for arrays that cannot be parameters, as the only error.
template <class Weight, class Gradient>
  requires(!(ParameterArray<Weight> && ParameterArray<Gradient>)) &&
          detail::Contiguous<std::remove_reference_t<Weight>> && detail::Contiguous<std::remove_reference_t<Gradient>>
auto ref(std::string, Weight&&, Gradient&&, ParameterOptions = {}) {
  static_assert(ParameterArray<Weight> && ParameterArray<Gradient>,
                "distx::ref: a weight and its gradient are arrays of float, double, bfloat16 or float16 that may be "
                "written to and stay where they are");
  return detail::NoParameter{};
}

/// A frozen parameter has no gradient: `ref(name, weight, {.trainable = false})`.
/// @throws MismatchError unless it is frozen
template <ParameterArray Weight>
[[nodiscard]] auto ref(std::string name, Weight&& weight, ParameterOptions options) {
  const auto weights = detail::contiguous(weight);
  using Weights = std::remove_const_t<decltype(weights)>;
  detail::check_parameter(name, weights.size(), options);
  if (options.trainable)
    throw MismatchError("'" + name + "' is to be trained and has no gradient: pass one, or set .trainable = false",
                        {.operation = "ref"});
  return ParameterRef<typename Weights::element_type, typename Weights::space>{std::move(name), weights, {}, options};
}

/// Numbers of the user's that are broadcast when the training begins; may be empty.
template <class Values>
  requires detail::Contiguous<std::remove_reference_t<Values>> && detail::Stays<Values>
[[nodiscard]] auto buffer_ref(std::string name, Values&& values) {
  const auto span = detail::contiguous(values);
  using Found = std::remove_const_t<decltype(span)>;
  static_assert(Transferable<typename Found::element_type> && !std::is_const_v<typename Found::element_type>,
                "distx::buffer_ref: the elements must be trivially copyable and not const");
  return BufferRef<typename Found::element_type, typename Found::space>{std::move(name), span};
}

}  // namespace distx
