// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/memory/local_matmul.hpp"
#include "distx/tensor/ops/rule.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// The operation that the user called, and where.
struct Caller {
  std::string_view operation;
  std::source_location location;
};

/// The elements of this rank's part, read-only.
template <class X>
auto local_view(const X& x) {
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

/// Whether the rule takes operands with these numbers of dimensions.
template <class Rule, class... Xs>
inline constexpr bool ranks_fit = requires(const Extents<rank_of<Xs>>&... extents) { Rule::extents(extents...); };

/// Whether the operands are in one memory space.
template <class X, class... Xs>
inline constexpr bool in_one_space =
    (std::same_as<typename std::remove_cvref_t<X>::space, typename std::remove_cvref_t<Xs>::space> && ...);

template <class Rule, class... Xs>
constexpr std::size_t result_rank() {
  if constexpr (ranks_fit<Rule, Xs...>)
    return std::tuple_size_v<decltype(Rule::extents(std::declval<const Extents<rank_of<Xs>>&>()...))>;
  else
    return rank_of<first_of<Xs...>>;
}

/// The result of an operation that does not compile, so that what uses it is not diagnosed as well.
template <class Rule, class... Xs>
using PlaceholderResult =
    DistTensor<typename ResultValue<Rule, Xs...>::type, result_rank<Rule, Xs...>(), mesh_of<first_of<Xs...>>,
               PlaceholderLayout, typename std::remove_cvref_t<first_of<Xs...>>::space>;
template <class X>
[[noreturn]] X never() {
  throw Error("a call that does not compile was made");
}
template <class Rule, class... Xs>
auto placeholder() -> PlaceholderResult<Rule, Xs...> {
  return never<PlaceholderResult<Rule, Xs...>>();
}

/// A tensor for the rule's result, whose elements are not set yet.
template <class Rule, class X, class... Xs>
auto result_for(const Caller& caller, const X& x, const Xs&... others) {
  if (!((others.mesh() == x.mesh()) && ...))
    throw InvalidArgument("operands are on different meshes; construct them from the same Mesh object",
                          context_of(x.mesh(), caller.operation, caller.location));
  try {
    return DistTensor<typename ResultValue<Rule, X, Xs...>::type, result_rank<Rule, X, Xs...>(), mesh_of<X>,
                      result_layout<Rule, X, Xs...>, typename X::space>(
        {x.mesh(), Rule::extents(x.extents(), others.extents()...)}, uninitialized);
  } catch (const ExtentsMismatch& mismatch) {
    throw InvalidArgument(mismatch.message, context_of(x.mesh(), caller.operation, caller.location));
  }
}

/// Calls a kernel, with the stream first if it takes one; on the host's memory it need not.
template <class Stream, class Kernel, class... Parts>
void compute(Stream stream, Kernel& kernel, const Parts&... parts) {
  if constexpr (std::is_empty_v<Stream> && requires { kernel(parts...); }) {
    kernel(parts...);
  } else if constexpr (requires { kernel(stream, parts...); }) {
    kernel(stream, parts...);
  } else {
    static_assert(std::is_empty_v<Stream>,
                  "distx: this operation has no kernel for this memory space, where kernels take the stream first; "
                  "use rules::apply<Rule>(x, kernel) with a custom kernel");
    if constexpr (std::is_empty_v<Stream>) kernel(parts...);
  }
}

/// Applies the rule, if it supports the operands. The caller explains placements that it does not support.
template <class Rule, class Kernel, class... Xs>
auto applied(const Caller& caller, Kernel&& kernel, const Xs&... xs) {
  constexpr bool applies = Applicable<Rule, Xs...>, fit = ranks_fit<Rule, Xs...>, one_space = in_one_space<Xs...>;
  static_assert(on_one_mesh<Xs...>, "distx: the operands of this operation are on meshes of different types");
  static_assert(!applies || fit,
                "distx: an operand has the wrong number of dimensions for this operation; see its shapes");
  static_assert(!applies || one_space,
                "distx: the operands of this operation are in different memory spaces; copy one by to_space<Space>(x)");
  if constexpr (applies && fit && one_space) {
    auto out = result_for<Rule>(caller, xs...);
    compute(out.stream(), kernel, local_view(xs)..., out.view());
    return out;
  } else {
    return placeholder<Rule, Xs...>();
  }
}

/// A tensor as a matrix: the first `leading` dimensions as rows, the others as columns.
template <class T, std::size_t Rank, class Space>
MatrixRef<T, Space> as_matrix(const TensorRef<T, Rank, Space>& x, std::size_t leading) {
  std::size_t rows = 1, columns = 1;
  for (std::size_t d = 0; d < Rank; ++d) (d < leading ? rows : columns) *= x.extent(d);
  return {x.values(), rows, columns};
}
/// A tensor as a matrix: the dimensions before the last as rows, the last as columns.
template <class T, std::size_t Rank, class Space>
MatrixRef<T, Space> as_rows(const TensorRef<T, Rank, Space>& x) {
  static_assert(Rank >= 1, "distx: a tensor of rank 0 does not have rows");
  return as_matrix(x, Rank - 1);
}

/// out = left * right, by the memory space's own `local_matmul`.
template <class Stream, class T, class Space, class Left, class Right>
void multiply(Stream stream, MatrixRef<T, Space> out, const Left& left, const Right& right) {
  constexpr bool can = requires { local_matmul(stream, out, left, right); };
  static_assert(can,
                "distx: matmul: no included header multiplies such matrices in this memory space; include one that "
                "does (for GPUs distx/cuda_blas.hpp), or pass a custom product");
  if constexpr (can) local_matmul(stream, out, left, right);
}

/// The product by the memory space's own `local_matmul`.
struct LocalProduct {
  template <class T, class Left, class Right, class Space>
  void operator()(typename Space::stream stream, MatrixRef<T, Space> out, MatrixRef<Left, Space> left,
                  MatrixRef<Right, Space> right) const {
    multiply(stream, out, left, right);
  }
};
/// An operand of a product as a matrix: its first `rows` dimensions are the rows of the matrix or of its transpose.
struct Factor {
  std::size_t rows;
  bool transposed = false;

  template <class X>
  [[nodiscard]] auto of(const X& x) const {
    const auto matrix = as_matrix(x, rows);
    return transposed ? matrix.transpose() : matrix;
  }
};
/// The product of two operands; the first `rows` dimensions of the result are its rows.
template <class Rule, class Product, class X, class Y>
auto multiplied(const Caller& caller, const Product& local_product, std::size_t rows, const X& x, Factor of_x,
                const Y& y, Factor of_y) {
  return applied<Rule>(
      caller,
      [&](auto stream, auto left, auto right, auto out) {
        compute(stream, local_product, as_matrix(out, rows), of_x.of(left), of_y.of(right));
      },
      x, y);
}

template <class Rule, class Kernel, class... Xs>
auto applied_by_user(const std::source_location& location, Kernel& kernel, const Xs&... xs) {
  static_assert(is_supported<missing_case<Rule, Xs...>>,
                "distx: apply: the rule does not support these placements; redistribute an operand that is Partial, "
                "or sharded in a dimension that the rule does not support");
  return applied<Rule>({Rule::name, location}, kernel, xs...);
}

}  // namespace detail

namespace rules {

/// @name Custom operations
/// Applies an operation with this rule to one to four distributed tensors and returns its result. Local.
///
/// The rule determines the layout and the extents of the result. The kernel is called as
/// `kernel(part of x, …, part of the result)` with a `TensorRef` for each, and sets all elements of the result, which
/// are unset before. In a memory space with streams it is called as `kernel(stream, part of x, …, part of the result)`
/// with the mesh's stream, and enqueues its work there. Placements that the rule does not support do not compile.
///
///     auto y = rules::apply<rules::Elementwise>(x, [](auto in, auto out) {
///       std::ranges::transform(in.values(), out.values().begin(), [](float v) { return v * v; });
///     });
/// @throws InvalidArgument if the extents do not match, or the operands are on different meshes
/// @{
template <class Rule, DistributedTensor X, class Kernel>
[[nodiscard]] auto apply(const X& x, Kernel&& kernel, std::source_location location = std::source_location::current()) {
  return detail::applied_by_user<Rule>(location, kernel, x);
}
template <class Rule, DistributedTensor X, DistributedTensor Y, class Kernel>
[[nodiscard]] auto apply(const X& x, const Y& y, Kernel&& kernel,
                         std::source_location location = std::source_location::current()) {
  return detail::applied_by_user<Rule>(location, kernel, x, y);
}
template <class Rule, DistributedTensor X, DistributedTensor Y, DistributedTensor Z, class Kernel>
[[nodiscard]] auto apply(const X& x, const Y& y, const Z& z, Kernel&& kernel,
                         std::source_location location = std::source_location::current()) {
  return detail::applied_by_user<Rule>(location, kernel, x, y, z);
}
template <class Rule, DistributedTensor X, DistributedTensor Y, DistributedTensor Z, DistributedTensor W, class Kernel>
[[nodiscard]] auto apply(const X& x, const Y& y, const Z& z, const W& w, Kernel&& kernel,
                         std::source_location location = std::source_location::current()) {
  return detail::applied_by_user<Rule>(location, kernel, x, y, z, w);
}
/// @}

}  // namespace rules

}  // namespace distx::inline DISTX_ABI
