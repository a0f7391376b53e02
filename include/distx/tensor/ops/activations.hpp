// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/ops/elementwise.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// The arithmetic of one element, or of several at once.
namespace elements {

struct Relu {
  static constexpr bool on_lanes = true;
  template <class V>
  constexpr V operator()(V x) const {
    return select(x > V(0), x, V(0));
  }
};
struct ReluBackward {
  static constexpr bool on_lanes = true;
  template <class V>
  constexpr V operator()(V x, V gradient) const {
    return select(x > V(0), gradient, V(0));
  }
};

DISTX_KERNELS_BEGIN
/// The tanh approximation of x · Φ(x) (Hendrycks and Gimpel, 2016, arXiv 1606.08415).
template <class T>
struct Gelu {
  static constexpr bool on_wide_lanes = true;
  static constexpr double root = 0.79788456080286535588;  // sqrt(2 / π)
  static constexpr double cubic = 0.044715;
  /// (1 + tanh(u)) / 2 is 1 / (1 + exp(-2u)), of which nothing cancels; the exponential of -2|u| is at most 1.
  template <class V>
  static constexpr V exponential(const V& x) {
    using std::abs;
    const V power = V(-2 * root) * abs(x) * (V(1) + V(cubic) * x * x);
    if constexpr (std::same_as<V, T>)
      return std::exp(power);
    else
      return detail::exponential<T>(power);
  }
  template <class V>
  constexpr V operator()(const V& x) const {
    const V e = exponential(x);
    return x * select(x < V(0), e, V(1)) / (V(1) + e);
  }
};
template <class T>
struct GeluBackward {
  static constexpr bool on_wide_lanes = true;
  template <class V>
  constexpr V operator()(const V& x, const std::type_identity_t<V>& gradient) const {
    constexpr double root = Gelu<T>::root, cubic = Gelu<T>::cubic;
    const V e = Gelu<T>::exponential(x), inverse = V(1) / (V(1) + e);
    return gradient * inverse *
           (select(x < V(0), e, V(1)) + V(2 * root) * x * (V(1) + V(3 * cubic) * x * x) * e * inverse);
  }
};
DISTX_KERNELS_END

}  // namespace elements

template <class F, class X, class G>
auto activation_backward(const Caller& caller, const F& f, const X& x, const G& gradient) {
  using Rule = rules::ElementwiseBackward;
  using Missing = missing_case<Rule, X, G>;
  constexpr bool partial = Missing::operands[0].is_partial();
  static_assert(supported_unless<Missing, partial>,
                "distx: relu_backward, gelu_backward: the operand is Partial and the activation is not linear; "
                "redistribute it first");
  static_assert(supported_unless<Missing, !partial>,
                "distx: relu_backward, gelu_backward: the gradient's layout differs from the operand's; redistribute "
                "the gradient to that layout");
  return mapped<Rule>(caller, f, x, gradient);
}

}  // namespace detail

namespace ops {

/// @name Activations
/// Functions of each element, with the extents, element type and layout of `x`. Local, stream-ordered.
/// Element types: `relu` takes any arithmetic type, `gelu` float and double; in GPU memory float and double.
///
/// The forward functions take an `x` that is replicated or sharded on each axis; a Partial `x` does not compile. The
/// backward functions return the gradient of `x` from `x` and the gradient of the result, which has the extents and the
/// placements of `x`, or is Partial where `x` is replicated; then so is the result.
/// @throws InvalidArgument if the extents differ, or the operands are on different meshes
/// @{

/// Returns max(x, 0).
template <DistributedTensor X>
[[nodiscard]] auto relu(const X& x, std::source_location location = std::source_location::current()) {
  using Rule = rules::Elementwise;
  static_assert(detail::is_supported<detail::missing_case<Rule, X>>,
                "distx: relu: the operand is Partial and relu is not linear; redistribute it first");
  return detail::mapped<Rule>({"relu", location}, detail::elements::Relu{}, x);
}
/// Returns the gradient of the operand of `relu`: `gradient` where x > 0, and 0 elsewhere.
template <DistributedTensor X, DistributedTensor G>
[[nodiscard]] auto relu_backward(const X& x, const G& gradient,
                                 std::source_location location = std::source_location::current()) {
  return detail::activation_backward({"relu_backward", location}, detail::elements::ReluBackward{}, x, gradient);
}
/// Returns the Gaussian error linear unit of x, in its tanh approximation (Hendrycks and Gimpel, 2016, arXiv
/// 1606.08415).
template <DistributedTensor X>
[[nodiscard]] auto gelu(const X& x, std::source_location location = std::source_location::current()) {
  using Rule = rules::Elementwise;
  static_assert(std::floating_point<detail::value_of<X>>,
                "distx: gelu: the elements must be float or double; cast the operand");
  if constexpr (!std::floating_point<detail::value_of<X>>) {
    return detail::placeholder<Rule, X>();
  } else {
    static_assert(detail::is_supported<detail::missing_case<Rule, X>>,
                  "distx: gelu: the operand is Partial and gelu is not linear; redistribute it first");
    return detail::mapped<Rule>({"gelu", location}, detail::elements::Gelu<detail::value_of<X>>{}, x);
  }
}
/// Returns the gradient of the operand of `gelu`.
template <DistributedTensor X, DistributedTensor G>
[[nodiscard]] auto gelu_backward(const X& x, const G& gradient,
                                 std::source_location location = std::source_location::current()) {
  using T = detail::value_of<X>;
  static_assert(std::floating_point<T>, "distx: gelu_backward: the elements must be float or double; cast the operand");
  if constexpr (std::floating_point<T>)
    return detail::activation_backward({"gelu_backward", location}, detail::elements::GeluBackward<T>{}, x, gradient);
  else
    return detail::placeholder<rules::ElementwiseBackward, X, G>();
}
/// @}

}  // namespace ops

}  // namespace distx::inline DISTX_ABI
