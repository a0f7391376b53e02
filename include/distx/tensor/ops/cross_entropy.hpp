// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>
#include <limits>

#include "distx/tensor/ops/embedding.hpp"

namespace distx {

/// What `cross_entropy` gives: a number for each row, and what its gradient needs.
template <class Rows>
struct CrossEntropies {
  Rows losses;    ///< -log(softmax(row)[target])
  Rows log_sums;  ///< log of the row's sum of exponentials
};

namespace detail {

/// What a rank's part of each row adds: the greatest, and relative to all ranks' the sum of the exponentials and the
/// target's logit, which is zero where the target is in another rank's part. Operations of the host's memory.
template <class T>
void greatest_of_rows(HostStream, MatrixRef<const T> logits, Span<T> greatest) {
  for (std::size_t row = 0; row < logits.rows; ++row) {
    greatest[row] = -std::numeric_limits<T>::infinity();
    for (std::size_t i = 0; i < logits.columns; ++i) greatest[row] = std::max(greatest[row], *logits.at(row, i));
  }
}
template <class T, class Id>
void sums_of_rows(HostStream, MatrixRef<const T> logits, Span<const Id> targets, std::size_t first, std::size_t all,
                  Span<const T> greatest, Span<T> sums, Span<T> at_targets) {
  for (std::size_t row = 0; row < logits.rows; ++row) {
    T sum = 0;
    for (std::size_t i = 0; i < logits.columns; ++i) sum += std::exp(*logits.at(row, i) - greatest[row]);
    sums[row] = sum;
    const auto at = row_of(targets[row], first, logits.columns, all, CrossEntropy::name);
    at_targets[row] = at ? *logits.at(row, *at) - greatest[row] : T{};
  }
}
template <class T>
void cross_entropy_of_rows(HostStream, Span<const T> greatest, Span<const T> sums, Span<const T> at_targets,
                           Span<T> losses, Span<T> log_sums) {
  for (std::size_t row = 0; row < sums.size(); ++row) {
    losses[row] = std::log(sums[row]) - at_targets[row];
    log_sums[row] = std::log(sums[row]) + greatest[row];
  }
}
template <class T, class Id>
void cross_entropy_slopes(HostStream, MatrixRef<const T> logits, Span<const Id> targets, std::size_t first,
                          std::size_t all, Span<const T> log_sums, Span<const T> gradient, MatrixRef<T> out) {
  for (std::size_t row = 0; row < logits.rows; ++row) {
    for (std::size_t i = 0; i < logits.columns; ++i)
      *out.at(row, i) = gradient[row] * std::exp(*logits.at(row, i) - log_sums[row]);
    if (const auto at = row_of(targets[row], first, logits.columns, all, CrossEntropyBackward::name))
      *out.at(row, *at) -= gradient[row];
  }
}

/// Reduces over the axes that cut the rows of x, if there are any.
template <class X, class T, class Op>
void reduce_rows(const X& x, Span<T, typename X::space> values, Op op, const std::source_location& location) {
  using Space = typename X::space;
  AxisSet axes = 0;
  const auto cutting = sharding_of<layout_of<X>, mesh_of<X>>(x.mesh().shape(), x.extents()).axes(rank_of<X> - 1);
  for (std::size_t i = 0; i < cutting.count; ++i) axes |= 1U << cutting.axis[i];
  if (axes != 0)
    in_space<Space>(x.mesh().state()).over(axes).execute(AllReduce<T, Op, Space>{values, values, op, location});
}

template <class Logits, class Targets>
void refuse_cross_entropy() {
  using Missing = missing_case<CrossEntropy, Logits, Targets>;
  constexpr AxisPlace logits = Missing::operands[0];
  if constexpr (!on_one_mesh<Logits, Targets>)
    static_assert(on_one_mesh<Logits, Targets>, "distx: cross_entropy: the operands lie on meshes of two types");
  else if constexpr (!HostAccessible<typename Logits::space>)
    static_assert(HostAccessible<typename Logits::space>,
                  "distx: cross_entropy: distx computes it in the host's memory alone: bring the logits there, or "
                  "compute it by apply<Rule>(logits, targets, kernel of yours)");
  else if constexpr (logits.is_partial())
    static_assert(is_ruled<Missing>,
                  "distx: cross_entropy: the logits are Partial and cross_entropy is not linear: redistribute them "
                  "first");
  else
    static_assert(is_ruled<Missing>,
                  "distx: cross_entropy: the targets do not lie as the rows of logits do: redistribute the targets to "
                  "the logits' layout without the vocabulary's axis");
}
template <class Logits, class Targets, class Sums, class G>
void refuse_cross_entropy_backward() {
  if constexpr (!on_one_mesh<Logits, Targets, Sums, G>)
    static_assert(on_one_mesh<Logits, Targets, Sums, G>,
                  "distx: cross_entropy_backward: the operands lie on meshes of two types");
  else
    static_assert(is_ruled<missing_case<CrossEntropyBackward, Logits, Targets, Sums, G>>,
                  "distx: cross_entropy_backward: the gradient does not lie as the losses do, or the logits are "
                  "Partial: redistribute it");
}

}  // namespace detail

/// Of each row of logits and the index of its target. Collective over the axes that shard the vocabulary, on which
/// three numbers of each row are reduced; the logits stay where they are.
/// @throws MismatchError for a target that the vocabulary has not
template <class Logits, class Targets>
  requires Applicable<CrossEntropy, Logits, Targets> && HostAccessible<typename Logits::space>
[[nodiscard]] auto cross_entropy(const Logits& logits, const Targets& targets,
                                 std::source_location location = std::source_location::current()) {
  static_assert(std::integral<value_of<Targets>>, "distx: cross_entropy: the targets are no integers");
  using T = value_of<Logits>;
  using Space = typename Logits::space;
  const typename Space::stream stream{};
  auto losses = detail::result_for<CrossEntropy>(logits, targets);
  auto log_sums = detail::result_for<CrossEntropy>(logits, targets);
  const auto part = detail::as_rows(detail::part_of(logits));
  Buffer<T, Space> greatest(part.rows, uninitialized), both(2 * part.rows, uninitialized);
  const Span<const T, Space> most(greatest.span());
  const auto sums = both.span().first(part.rows), at_targets = both.span().subspan(part.rows, part.rows);
  constexpr std::size_t last = rank_of<Logits> - 1;
  detail::greatest_of_rows(stream, part, greatest.span());
  detail::reduce_rows(logits, greatest.span(), Max{}, location);
  detail::sums_of_rows(stream, part, detail::part_of(targets).values(), detail::box_of(logits).begin[last],
                       logits.extents()[last], most, sums, at_targets);
  detail::reduce_rows(logits, both.span(), Sum{}, location);
  detail::cross_entropy_of_rows<T>(stream, most, sums, at_targets, losses.local(), log_sums.local());
  return CrossEntropies<decltype(losses)>{std::move(losses), std::move(log_sums)};
}

/// The gradient of the logits: softmax(row) - onehot(target), times the gradient of the row's loss.
template <class Logits, class Targets, class Sums, class G>
  requires Applicable<CrossEntropyBackward, Logits, Targets, Sums, G>
[[nodiscard]] auto cross_entropy_backward(const Logits& logits, const Targets& targets, const Sums& log_sums,
                                          const G& gradient) {
  return apply<CrossEntropyBackward>(
      logits, targets, log_sums, gradient, [&](auto rows, auto names, auto sums, auto slopes, auto out) {
        detail::cross_entropy_slopes(typename Logits::space::stream{}, detail::as_rows(rows), names.values(),
                                     detail::box_of(logits).begin[rank_of<Logits> - 1],
                                     logits.extents()[rank_of<Logits> - 1], sums.values(), slopes.values(),
                                     detail::as_rows(out));
      });
}

template <class Logits, class Targets>
  requires Operands<Logits, Targets>
auto cross_entropy(const Logits&, const Targets&, std::source_location = std::source_location::current())
    -> CrossEntropies<detail::refused<Logits, rank_of<Logits> - 1>> {
  detail::refuse_cross_entropy<Logits, Targets>();
  return detail::never<CrossEntropies<detail::refused<Logits, rank_of<Logits> - 1>>>();
}
template <class Logits, class Targets, class Sums, class G>
  requires Operands<Logits, Targets, Sums, G>
auto cross_entropy_backward(const Logits&, const Targets&, const Sums&, const G&) -> detail::refused<Logits> {
  detail::refuse_cross_entropy_backward<Logits, Targets, Sums, G>();
  return detail::never<detail::refused<Logits>>();
}

}  // namespace distx
