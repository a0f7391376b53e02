// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <utility>

#include "distx/parallel/detail/base/contiguous.hpp"
#include "distx/parallel/parameter.hpp"

namespace distx::inline DISTX_ABI {

/// A borrowed parameter, made by `ref`: a weight and its gradient in the user's memory, which must stay in place and
/// outlive the training.
template <detail::ParameterElement T, MemorySpace Space = Host>
struct ParameterRef {
  std::string name;
  Span<T, Space> weight;
  Span<T, Space> gradient;  ///< as long as `weight`; empty if the parameter is frozen
  ParameterOptions options{};
};

/// A borrowed buffer, made by `buffer_ref`: values that are broadcast when the training is constructed and not trained,
/// such as running means.
template <Transferable T, MemorySpace Space = Host>
struct BufferRef {
  std::string name;
  Span<T, Space> values;
  std::vector<std::size_t> shape{};  ///< in checkpoints, row-major; {size} if it is empty
};

/// Returns a borrowed parameter, which is reduced and updated in place.
///
/// @param weight, gradient  contiguous writable arrays of float, double, bfloat16 or float16, of one element type and
///   length: std::vector, std::array, std::span, distx::Span, an Eigen matrix or map, anything with data() and size();
///   or Span<AnyElement>s
/// @throws InvalidArgument for different lengths, no elements, an empty name or invalid options
template <detail::ParameterArray Weight, detail::ParameterArray Gradient>
[[nodiscard]] auto ref(std::string name, Weight&& weight, Gradient&& gradient, ParameterOptions options = {}) {
  const auto weights = detail::contiguous(weight);
  const auto gradients = detail::contiguous(gradient);
  using Weights = std::remove_const_t<decltype(weights)>;
  static_assert(std::same_as<Weights, std::remove_const_t<decltype(gradients)>>,
                "distx::ref: the weight and its gradient must have the same element type and memory space");
  detail::check_parameter(name, weights.size(), options);
  detail::check_same_size(name, weights.size(), gradients.size(), {.operation = "ref"});
  if constexpr (std::same_as<typename Weights::element_type, AnyElement>) {
    detail::check_element_type(name, weights.type());
    if (weights.type() != gradients.type())
      throw InvalidArgument("'" + name + "' is of " + std::string(name_of(weights.type())) +
                                ", but its gradient is of " + std::string(name_of(gradients.type())) +
                                "; they must have the same type",
                            {.operation = "ref"});
  }
  return ParameterRef<typename Weights::element_type, typename Weights::space>{std::move(name), weights, gradients,
                                                                               std::move(options)};
}

namespace detail {

/// Returned after a diagnosed compile error, to suppress follow-up errors.
struct NoParameter {};

}  // namespace detail

/// Diagnoses arrays that cannot be parameters with one compile error.
template <class Weight, class Gradient>
  requires(!(detail::ParameterArray<Weight> && detail::ParameterArray<Gradient>)) &&
          detail::Contiguous<std::remove_reference_t<Weight>> && detail::Contiguous<std::remove_reference_t<Gradient>>
auto ref(std::string, Weight&&, Gradient&&, ParameterOptions = {}) {
  static_assert(detail::ParameterArray<Weight> && detail::ParameterArray<Gradient>,
                "distx::ref: a weight and its gradient must be writable arrays of float, double, bfloat16 or float16 "
                "that stay in place");
  return detail::NoParameter{};
}

/// Returns a borrowed frozen parameter: `ref(name, weight, {.trainable = false})`.
/// @throws InvalidArgument if `.trainable` is true
template <detail::ParameterArray Weight>
[[nodiscard]] auto ref(std::string name, Weight&& weight, ParameterOptions options) {
  const auto weights = detail::contiguous(weight);
  using Weights = std::remove_const_t<decltype(weights)>;
  detail::check_parameter(name, weights.size(), options);
  if (options.trainable)
    throw InvalidArgument("'" + name + "' is trainable but has no gradient; pass one, or set .trainable = false",
                          {.operation = "ref"});
  return ParameterRef<typename Weights::element_type, typename Weights::space>{
      std::move(name), weights, {}, std::move(options)};
}

/// Returns a borrowed buffer of trivially copyable values; it may be empty.
/// @param shape  in checkpoints, row-major; {size} without it
template <class Values>
  requires detail::Contiguous<std::remove_reference_t<Values>> && detail::Stays<Values>
[[nodiscard]] auto buffer_ref(std::string name, Values&& values, std::vector<std::size_t> shape = {}) {
  const auto span = detail::contiguous(values);
  using Found = std::remove_const_t<decltype(span)>;
  static_assert(Transferable<typename Found::element_type> && !std::is_const_v<typename Found::element_type>,
                "distx::buffer_ref: the elements must be trivially copyable and not const");
  detail::check_shape(name, span.size(), shape);
  return BufferRef<typename Found::element_type, typename Found::space>{std::move(name), span, std::move(shape)};
}

}  // namespace distx::inline DISTX_ABI
