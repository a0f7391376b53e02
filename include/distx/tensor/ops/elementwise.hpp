// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>

#include "distx/memory/lanes.hpp"
#include "distx/tensor/ops/apply.hpp"
#include "distx/tensor/ops/rules.hpp"

namespace distx {

namespace detail {

/// Whether f may be called on several numbers at once: it says so itself, for its body need not compile for them.
template <class F>
inline constexpr bool on_lanes = requires { requires F::on_lanes; };

/// out[i] = f(xs[i]…): an operation of the host's memory.
template <class F, class T, class... Xs>
void for_elements(HostStream, const F& f, Span<T> out, Span<const Xs>... xs) {
  static_assert(!(std::integral<T> && std::floating_point<decltype(f(xs[0]...))>),
                "distx: map, zip: the function gives fractions, and the result would have whole numbers as its first "
                "operand has: make that operand of a floating type, or round in the function");
  const std::size_t n = out.size();
  std::size_t i = 0;
  if constexpr (on_lanes<F> && std::floating_point<T> && (std::same_as<T, Xs> && ...)) {
    using V = Lanes<T>;
    const auto at = [&](std::size_t place) { f(V::load(xs.data() + place)...).store(out.data() + place); };
    // Several at a time, so that counting does not take longer than a function as short as relu.
    for (; i + 4 * V::size <= n; i += 4 * V::size) {
      at(i);
      at(i + V::size);
      at(i + 2 * V::size);
      at(i + 3 * V::size);
    }
    for (; i + V::size <= n; i += V::size) at(i);
  }
  for (; i < n; ++i) out[i] = static_cast<T>(f(xs[i]...));
}

/// As a kernel, where the memory has such.
template <class F>
struct OnElements {
  const F& f;

  template <class Stream, class X, class Out>
  auto operator()(Stream stream, const X& x,
                  const Out& out) const -> decltype(for_elements(stream, f, out.values(), x.values())) {
    for_elements(stream, f, out.values(), x.values());
  }
  template <class Stream, class X, class Y, class Out>
  auto operator()(Stream stream, const X& x, const Y& y,
                  const Out& out) const -> decltype(for_elements(stream, f, out.values(), x.values(), y.values())) {
    for_elements(stream, f, out.values(), x.values(), y.values());
  }
};

template <class Rule, class F, class X>
auto mapped(const F& f, const X& x) {
  return apply<Rule>(x, OnElements<F>{f});
}
template <class Rule, class F, class X, class Y>
auto mapped(const F& f, const X& x, const Y& y) {
  return apply<Rule>(x, y, OnElements<F>{f});
}

/// The sentences on two operands of which neither may be Partial.
template <class Rule, class X, class Y>
void refuse_zip() {
  using Missing = missing_case<Rule, X, Y>;
  constexpr AxisPlace x = Missing::operands[0], y = Missing::operands[1];
  if constexpr (!on_one_mesh<X, Y>)
    static_assert(on_one_mesh<X, Y>, "distx: zip: the operands lie on meshes of two types");
  else if constexpr (x.is_partial() || y.is_partial())
    static_assert(is_ruled<Missing>,
                  "distx: zip: an operand is Partial and the function is not known to be linear: redistribute it "
                  "first");
  else
    static_assert(is_ruled<Missing>,
                  "distx: zip: one axis shards the operands differently: redistribute one to the other's layout");
}

}  // namespace detail

/// f of each element, in the order of this rank's part; of the operand's type. @pre f is the same on all ranks
template <class X, class F>
  requires Applicable<Elementwise, X>
[[nodiscard]] auto map(const X& x, F&& f) {
  return detail::mapped<Elementwise>(f, x);
}
template <class X, class F>
  requires Operands<X>
auto map(const X&, F&&) -> detail::refused<X> {
  static_assert(is_ruled<detail::missing_case<Elementwise, X>>,
                "distx: map: the operand is Partial and the function is not known to be linear: redistribute it first");
  return detail::never<detail::refused<X>>();
}

/// f of the elements of both at each index. @pre f is the same on all ranks
template <class X, class Y, class F>
  requires Applicable<Zip, X, Y>
[[nodiscard]] auto zip(const X& x, const Y& y, F&& f) {
  return detail::mapped<Zip>(f, x, y);
}
template <class X, class Y, class F>
  requires Operands<X, Y>
auto zip(const X&, const Y&, F&&) -> detail::refused<X> {
  detail::refuse_zip<Zip, X, Y>();
  return detail::never<detail::refused<X>>();
}

}  // namespace distx
