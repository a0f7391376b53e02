// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>

#include "distx/memory/sums.hpp"
#include "distx/tensor/ops/apply.hpp"
#include "distx/tensor/ops/rules.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// Whether f may be called on several numbers at once; it declares so itself, as its body need not compile for them.
template <class F>
inline constexpr bool on_lanes = requires { requires F::on_lanes; };
/// The same of doubles on the widest vectors, for functions that take long.
template <class F>
inline constexpr bool on_wide_lanes = requires { requires F::on_wide_lanes; };

template <class F>
struct WideElements {
  static_assert(std::is_empty_v<F>);
  template <std::size_t Bytes, class T, class... Xs>
  static void run(T* out, std::size_t n, const Xs*... xs) {
    using V = Lanes<double, Bytes>;
    for (std::size_t i = 0; i < n; i += V::size)
      narrow_before(out + n, out + i, F()(wide_before<V>(xs + n, xs + i)...));
  }
};

/// out[i] = f(xs[i]…) on the host's memory; other memory spaces overload it on their stream.
template <class F, class T, class... Xs>
void for_elements(HostStream, const F& f, Span<T> out, Span<const Xs>... xs) {
  static_assert(!(std::integral<T> && std::floating_point<decltype(f(xs[0]...))>),
                "distx: map, zip: the function returns a floating-point number, and the result would have the first "
                "operand's integral element type; make that operand floating-point, or round in the function");
  const std::size_t n = out.size();
  if constexpr (on_wide_lanes<F>) return run_on_lanes<WideElements<F>>(lane_bytes(), out.data(), n, xs.data()...);
  std::size_t i = 0;
  if constexpr (on_lanes<F> && std::floating_point<T> && (std::same_as<T, Xs> && ...)) {
    using V = Lanes<T>;
    const auto at = [&](std::size_t index) { f(V::load(xs.data() + index)...).store(out.data() + index); };
    // Unrolled, so that the loop counter does not take longer than a function as short as relu.
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

/// `for_elements` as a kernel, callable only in memory spaces that have it.
template <class F>
struct ElementwiseKernel {
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

template <class Rule, class F, class... Xs>
auto mapped(const Caller& caller, const F& f, const Xs&... xs) {
  return applied<Rule>(caller, ElementwiseKernel<F>{f}, xs...);
}

template <class Missing>
consteval void check_zip() {
  constexpr bool partial = Missing::operands[0].is_partial() || Missing::operands[1].is_partial();
  static_assert(supported_unless<Missing, partial>,
                "distx: zip: an operand is Partial and the function is not known to be linear; redistribute it first");
  static_assert(supported_unless<Missing, !partial>,
                "distx: zip: one axis shards the operands differently; redistribute one to the other's layout");
}

template <class To>
struct CastRule : rules::Elementwise {
  static constexpr std::string_view name = "cast";
  template <class From>
  using value_type = To;
};
struct CastKernel {
  template <class Stream, class From, class To>
  auto operator()(Stream stream, const From& from,
                  const To& to) const -> decltype(cast(stream, to.values(), from.values())) {
    return cast(stream, to.values(), from.values());
  }
};

}  // namespace detail

namespace ops {

/// Returns `x` with elements of type `To`, rounded to nearest if that is narrower; from double to a 16-bit type through
/// float. Local, stream-ordered.
///
/// `x` is replicated or sharded on each axis; a Partial operand does not compile.
template <FloatingElement To, DistributedTensor X>
  requires FloatingElement<detail::value_of<X>>
[[nodiscard]] auto cast(const X& x, std::source_location location = std::source_location::current()) {
  using Rule = detail::CastRule<To>;
  static_assert(detail::is_supported<detail::missing_case<Rule, X>>,
                "distx: cast: the operand is Partial and rounding is not linear; redistribute it first");
  return detail::applied<Rule>({"cast", location}, detail::CastKernel(), x);
}

/// Returns a tensor of f(element), with the extents, element type and layout of `x`. Local, stream-ordered.
///
/// `x` is replicated or sharded on each axis; a Partial operand does not compile. `f` must be the same function on all
/// ranks. In GPU memory it is a function object that was registered in the file that nvcc compiles.
template <DistributedTensor X, class F>
[[nodiscard]] auto map(const X& x, F&& f, std::source_location location = std::source_location::current()) {
  using Rule = rules::Elementwise;
  static_assert(detail::is_supported<detail::missing_case<Rule, X>>,
                "distx: map: the operand is Partial and the function is not known to be linear; redistribute it first");
  return detail::mapped<Rule>({"map", location}, f, x);
}

/// Returns a tensor of f(element of x, element of y) at each index, with the element type of `x`. Local,
/// stream-ordered.
///
/// `x` and `y` have equal extents and, on each axis, equal placements, which are the result's; a Partial operand does
/// not compile. `f` is as for `map`.
/// @throws InvalidArgument if the extents differ, or the operands are on different meshes
template <DistributedTensor X, DistributedTensor Y, class F>
[[nodiscard]] auto zip(const X& x, const Y& y, F&& f, std::source_location location = std::source_location::current()) {
  using Rule = rules::Zip;
  detail::check_zip<detail::missing_case<Rule, X, Y>>();
  return detail::mapped<Rule>({"zip", location}, f, x, y);
}

}  // namespace ops

}  // namespace distx::inline DISTX_ABI
