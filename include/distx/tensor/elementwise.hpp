// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>

#include "distx/memory/lanes.hpp"
#include "distx/tensor/apply.hpp"
#include "distx/tensor/rules.hpp"

namespace distx {

namespace detail {

/// Whether f may be called on several numbers at once: it says so, for its body need not compile for them.
template <class F>
inline constexpr bool on_lanes = requires { requires F::on_lanes; };

/// out[i] = f(xs[i]…): an operation of the host's memory.
template <class F, class T, class... Xs>
void for_elements(HostStream, const F& f, Span<T> out, Span<const Xs>... xs) {
  const std::size_t n = out.size();
  std::size_t i = 0;
  if constexpr (on_lanes<F> && std::floating_point<T> && (std::same_as<T, Xs> && ...)) {
    using V = Lanes<T>;
    for (; i + V::size <= n; i += V::size) f(V::load(xs.data() + i)...).store(out.data() + i);
  }
  for (; i < n; ++i) out[i] = static_cast<T>(f(xs[i]...));
}

template <class Rule, class F, class... Xs>
auto mapped(const F& f, const Xs&... xs) {
  using Space = typename first_of<Xs...>::space;
  return apply<Rule>(xs..., [&](auto... views) {
    const auto all = std::tie(views...);
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      for_elements(typename Space::stream{}, f, std::get<sizeof...(I)>(all).values(), std::get<I>(all).values()...);
    }(std::index_sequence_for<Xs...>{});
  });
}

}  // namespace detail

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

}  // namespace elements

/// max(x, 0).
template <class X>
  requires Applicable<Elementwise, X>
[[nodiscard]] auto relu(const X& x) {
  return detail::mapped<Elementwise>(elements::Relu{}, x);
}
template <class X>
  requires Operands<X>
auto relu(const X&) -> detail::refused<X> {
  static_assert(is_ruled<detail::missing_case<Elementwise, X>>,
                "distx: relu: the operand is Partial and relu is not linear: redistribute it first");
  return detail::never<detail::refused<X>>();
}
/// The gradient of `relu` with respect to x, from that with respect to its result.
template <class X, class G>
  requires Applicable<ElementwiseBackward, X, G>
[[nodiscard]] auto relu_backward(const X& x, const G& gradient) {
  return detail::mapped<ElementwiseBackward>(elements::ReluBackward{}, x, gradient);
}

}  // namespace distx
