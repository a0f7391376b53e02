// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/memory/local_matmul.hpp"
#include "distx/tensor/ops/rule.hpp"

namespace distx {

namespace detail {

/// This rank's part of the tensor.
template <class X>
Box box_of(const X& x) {
  if constexpr (requires {
                  { x.box() } -> std::convertible_to<Box>;
                })
    return x.box();
  else
    return sharding_of<layout_of<X>, mesh_of<X>>(x.mesh().shape(), x.extents()).box(x.mesh().rank());
}

/// The elements of that part, to be read.
template <class X>
auto part_of(const X& x) {
  Extents<rank_of<X>> extents{};
  std::copy_n(box_of(x).size.begin(), rank_of<X>, extents.begin());
  return TensorRef<const value_of<X>, rank_of<X>, typename X::space>(
      Span<const value_of<X>, typename X::space>(x.local()), extents);
}

template <class Rule, class... Xs>
struct ResultValue {
  using type = value_of<first_of<Xs...>>;
};
template <class Rule, class... Xs>
  requires requires { typename Rule::template value_type<value_of<Xs>...>; }
struct ResultValue<Rule, Xs...> {
  using type = typename Rule::template value_type<value_of<Xs>...>;
};

/// A tensor for the rule's result, whose elements are not set yet.
template <class Rule, class X, class... Xs>
auto result_for(const X& x, const Xs&... others) {
  if (!((others.mesh() == x.mesh()) && ...))
    throw MismatchError("the operands lie on two meshes: make one and hand it to all", {.operation = Rule::name});
  const auto extents = Rule::extents(x.extents(), others.extents()...);
  constexpr std::size_t rank = std::tuple_size_v<std::remove_const_t<decltype(extents)>>;
  using Out = DistTensor<typename ResultValue<Rule, X, Xs...>::type, rank, mesh_of<X>, result_layout<Rule, X, Xs...>,
                         typename X::space>;
  return Out({x.mesh(), extents}, uninitialized);
}

/// Calls what computes: with the stream first if it takes that. On the host's memory it need not.
template <class Stream, class Kernel, class... Parts>
void compute(Stream stream, Kernel& kernel, const Parts&... parts) {
  if constexpr (std::is_empty_v<Stream> && requires { kernel(parts...); }) {
    kernel(parts...);
  } else if constexpr (requires { kernel(stream, parts...); }) {
    kernel(stream, parts...);
  } else {
    static_assert(std::is_empty_v<Stream>,
                  "distx: what computes in this memory takes the stream first, and this kernel does not: an operation "
                  "that distx has for the host's memory alone is done here by apply<Rule>(x, kernel of yours)");
    if constexpr (std::is_empty_v<Stream>) kernel(parts...);
  }
}

template <class Rule, class Kernel, class... Xs>
auto applied(Kernel& kernel, const Xs&... xs) {
  auto out = result_for<Rule>(xs...);
  compute(out.stream(), kernel, part_of(xs)..., out.view());
  return out;
}

/// The dimensions before the last as rows, the last as columns.
template <class T, std::size_t Rank, class Space>
MatrixRef<T, Space> as_rows(const TensorRef<T, Rank, Space>& x) {
  static_assert(Rank >= 1, "distx: a tensor without dimensions has no rows");
  std::size_t rows = 1;
  for (std::size_t d = 0; d + 1 < Rank; ++d) rows *= x.extent(d);
  return {x.values(), rows, x.extent(Rank - 1)};
}

/// out = left * right, by the memory space's own `local_matmul`.
template <class Stream, class T, class Space, class Left, class Right>
void multiply(Stream stream, MatrixRef<T, Space> out, const Left& left, const Right& right) {
  constexpr bool can = requires { local_matmul(stream, out, left, right); };
  static_assert(can,
                "distx: matmul: nothing that is included multiplies such matrices in this memory: include what does "
                "(for GPUs distx/cuda_blas.hpp), or name a product of yours");
  if constexpr (can) local_matmul(stream, out, left, right);
}

/// Stands for the result of what does not compile, so that nothing after it is refused too.
template <class X, std::size_t Rank = rank_of<X>>
using refused = DistTensor<value_of<X>, Rank, mesh_of<X>, distx::Layout<>, typename X::space>;
template <class X>
[[noreturn]] X never() {
  throw Error("a call that does not compile was made");
}

}  // namespace detail

/// Does an operation to each rank's parts, without communication: `kernel(part of x, …, part of the result)`.
///
/// The rule says how the result lies. The kernel sets all elements of the result, which hold nothing before. Where
/// streams order the work, it takes the mesh's first, to enqueue there: `kernel(stream, part of x, …, part of the
/// result)`.
/// @throws MismatchError where the extents do not fit, or the operands lie on two meshes
/// @{
template <class Rule, class X, class Kernel>
  requires Applicable<Rule, X>
[[nodiscard]] auto apply(const X& x, Kernel&& kernel) {
  return detail::applied<Rule>(kernel, x);
}
template <class Rule, class X, class Y, class Kernel>
  requires Applicable<Rule, X, Y>
[[nodiscard]] auto apply(const X& x, const Y& y, Kernel&& kernel) {
  return detail::applied<Rule>(kernel, x, y);
}
template <class Rule, class X, class Y, class Z, class Kernel>
  requires Applicable<Rule, X, Y, Z>
[[nodiscard]] auto apply(const X& x, const Y& y, const Z& z, Kernel&& kernel) {
  return detail::applied<Rule>(kernel, x, y, z);
}
template <class Rule, class X, class Y, class Z, class W, class Kernel>
  requires Applicable<Rule, X, Y, Z, W>
[[nodiscard]] auto apply(const X& x, const Y& y, const Z& z, const W& w, Kernel&& kernel) {
  return detail::applied<Rule>(kernel, x, y, z, w);
}
/// @}

namespace detail {

template <class Rule, class... Xs>
void refuse_apply() {
  if constexpr (!on_one_mesh<Xs...>)
    static_assert(on_one_mesh<Xs...>, "distx: apply: the operands lie on meshes of two types");
  else
    static_assert(is_ruled<missing_case<Rule, Xs...>>,
                  "distx: apply: the rule has no case for operands that lie so: redistribute one that is Partial, or "
                  "sharded in a dimension that the rule does not shard");
}

}  // namespace detail

template <class Rule, class X, class Kernel>
  requires Operands<X>
auto apply(const X&, Kernel&&) -> detail::refused<X> {
  detail::refuse_apply<Rule, X>();
  return detail::never<detail::refused<X>>();
}
template <class Rule, class X, class Y, class Kernel>
  requires Operands<X, Y>
auto apply(const X&, const Y&, Kernel&&) -> detail::refused<X> {
  detail::refuse_apply<Rule, X, Y>();
  return detail::never<detail::refused<X>>();
}
template <class Rule, class X, class Y, class Z, class Kernel>
  requires Operands<X, Y, Z>
auto apply(const X&, const Y&, const Z&, Kernel&&) -> detail::refused<X> {
  detail::refuse_apply<Rule, X, Y, Z>();
  return detail::never<detail::refused<X>>();
}
template <class Rule, class X, class Y, class Z, class W, class Kernel>
  requires Operands<X, Y, Z, W>
auto apply(const X&, const Y&, const Z&, const W&, Kernel&&) -> detail::refused<X> {
  detail::refuse_apply<Rule, X, Y, Z, W>();
  return detail::never<detail::refused<X>>();
}

}  // namespace distx
