// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>
#include <limits>

#include "distx/comm/detail/in_order.hpp"
#include "distx/memory/sums.hpp"
#include "distx/tensor/ops/embedding.hpp"

namespace distx::inline DISTX_ABI {

namespace ops {

/// The result of `cross_entropy`: two numbers per row of logits, with the extents and the layout of the targets.
template <class Losses, class LogSums>
struct CrossEntropyResult {
  Losses losses;     ///< -log(softmax(row)[target])
  LogSums log_sums;  ///< doubles: the log of the row's sum of exponentials, which `cross_entropy_backward` needs
};

}  // namespace ops

namespace detail {

DISTX_KERNELS_BEGIN
struct SumExponentials {
  template <std::size_t Bytes, class T>
  static void run(MatrixRef<const T> logits, const T* maxima, double* sums) {
    if (logits.columns <= short_row)
      return exponentials_of_short_rows<Bytes>(
          logits, [=](std::size_t row) { return maxima[row]; },
          [=](std::size_t row, const double* each) { sums[row] = add_up<Bytes>(each, logits.columns); });
    for (std::size_t row = 0; row < logits.rows; ++row) {
      const T* const from = logits.at(row, 0);
      const double maximum = maxima[row];
      sums[row] = add_up<Bytes>(
          logits.columns, [=]<class V>(std::size_t i, V) { return exponential<T>(wide<V>(from + i) - V(maximum)); });
    }
  }
};
/// The gradients of logits; `targets - first` are columns, or not of this rank.
struct LogitGradients {
  template <std::size_t Bytes, class T, class Id>
  static void run(MatrixRef<const T> logits, const Id* targets, std::size_t first, const double* log_sums,
                  const T* gradient, MatrixRef<T> out) {
    const std::size_t n = logits.columns;
    const auto target_of = [=](std::size_t row) { return static_cast<std::size_t>(targets[row]) - first; };
    if (n <= short_row)
      return exponentials_of_short_rows<Bytes>(
          logits, [=](std::size_t row) { return log_sums[row]; },
          [=](std::size_t row, const double* each) {
            T* const to = out.at(row, 0);
            const double slope = gradient[row];
            for_each_wide<Bytes>(n,
                                 [=]<class V>(std::size_t i, V) { narrow_to(to + i, V(slope) * wide<V>(each + i)); });
            if (const std::size_t at = target_of(row); at < n) to[at] = static_cast<T>(slope * (each[at] - 1));
          });
    for (std::size_t row = 0; row < logits.rows; ++row) {
      const T* const from = logits.at(row, 0);
      T* const to = out.at(row, 0);
      const double log_sum = log_sums[row], slope = gradient[row];
      const auto probability = [=]<class V>(std::size_t i, V) {
        return exponential<T>(wide<V>(from + i) - V(log_sum));
      };
      for_each_wide<Bytes>(n, [=]<class V>(std::size_t i, V v) { narrow_to(to + i, V(slope) * probability(i, v)); });
      if (const std::size_t at = target_of(row); at < n)
        to[at] = static_cast<T>(slope * (probability(at, OneLane()).value() - 1));
    }
  }
};
DISTX_KERNELS_END

/// @name Kernels of the host's memory
/// Of each row, a rank computes the maximum of its part, and relative to the maximum of all ranks the sum of
/// exponentials and the target's logit, which is zero if another rank holds it.
/// @{
template <class T>
void maxima_of_rows(HostStream, MatrixRef<const T> logits, Span<T> maxima) {
  for (std::size_t row = 0; row < logits.rows; ++row) {
    maxima[row] = -std::numeric_limits<T>::infinity();
    for (std::size_t i = 0; i < logits.columns; ++i) maxima[row] = std::max(maxima[row], *logits.at(row, i));
  }
}
template <class T, class Id>
void sums_of_rows(HostStream, MatrixRef<const T> logits, Span<const Id> targets, std::size_t first, std::size_t all,
                  Span<const T> maxima, Span<double> sums, Span<double> at_targets, const ErrorContext& context) {
  run_on_lanes<SumExponentials>(lane_bytes(), logits, maxima.data(), sums.data());
  for (std::size_t row = 0; row < logits.rows; ++row) {
    const auto at = row_of(targets[row], first, logits.columns, all, context);
    at_targets[row] = at ? static_cast<double>(*logits.at(row, *at)) - static_cast<double>(maxima[row]) : 0;
  }
}
template <class T>
void cross_entropy_of_rows(HostStream, Span<const T> maxima, Span<const double> sums, Span<const double> at_targets,
                           Span<T> losses, Span<double> log_sums) {
  for (std::size_t row = 0; row < sums.size(); ++row) {
    const double log_sum = std::log(sums[row]);
    losses[row] = static_cast<T>(log_sum - at_targets[row]), log_sums[row] = log_sum + maxima[row];
  }
}
template <class T, class Id>
void cross_entropy_gradient(HostStream, MatrixRef<const T> logits, Span<const Id> targets, std::size_t first,
                            std::size_t all, Span<const double> log_sums, Span<const T> gradient, MatrixRef<T> out,
                            const ErrorContext& context) {
  for (const Id target : targets) row_of(target, first, logits.columns, all, context);  // throws for an invalid one
  run_on_lanes<LogitGradients>(lane_bytes(), logits, targets.data(), first, log_sums.data(), gradient.data(), out);
}
/// @}

/// Reduces over the axes that shard the rows of x, if there are any.
template <class X, class T, class Op>
void reduce_rows(const X& x, Span<T, typename X::space> values, Op op, const std::source_location& location) {
  using Space = typename X::space;
  AxisSet axes = 0;
  const auto sharding = sharding_of(x).axes(rank_of<X> - 1);
  for (std::size_t i = 0; i < sharding.count; ++i) axes |= 1U << sharding.axis[i];
  if (axes != 0)
    make_in_order(in_space<Space>(state_of(x.mesh())).over(axes), AllReduce<T, Op, Space>{values, values, op, location},
                  stream_of(x));
}

template <class Missing>
consteval void check_cross_entropy() {
  constexpr bool partial = Missing::operands[0].is_partial();
  static_assert(supported_unless<Missing, partial>,
                "distx: cross_entropy: the logits are Partial and cross_entropy is not linear; redistribute them "
                "first");
  static_assert(supported_unless<Missing, !partial>,
                "distx: cross_entropy: the targets are not sharded as the rows of the logits; redistribute the "
                "targets to the logits' layout without the vocabulary's axis");
}

}  // namespace detail

namespace ops {

/// Returns for each row of logits (…, v) and its target (…) the loss -log(softmax(row)[target]), unreduced, and the log
/// of the row's sum of exponentials: two tensors (…), of the logits' element type, float or double, and of double.
///
/// Targets are integers in [0, v). On each axis the rows of both are sharded alike, or the targets are replicated and
/// the logits are replicated or sharded in the vocabulary. Collective over the axes that shard the vocabulary: there
/// two all-reduces of together three numbers per row; the logits are not moved. Local otherwise. Stream-ordered.
///
///     auto [losses, log_sums] = distx::ops::cross_entropy(logits, targets);
///     auto gradient = distx::ops::cross_entropy_backward(logits, targets, log_sums, gradient_of_losses);
/// @throws DataError for a target outside [0, v); in GPU memory, where the check would block the host, its loss and its
///   row's gradient are NaNs
/// @throws InvalidArgument if the extents do not match, or the operands are on different meshes
/// @throws MismatchError, TimeoutError, RevokedError, RankFailure as `all_reduce` does
template <DistributedTensor Logits, DistributedTensor Targets>
[[nodiscard]] auto cross_entropy(const Logits& logits, const Targets& targets,
                                 std::source_location location = std::source_location::current()) {
  static_assert(std::integral<detail::value_of<Targets>>, "distx: cross_entropy: the targets are not integers");
  using Rule = rules::CrossEntropy;
  detail::check_cross_entropy<detail::missing_case<Rule, Logits, Targets>>();
  static_assert(detail::on_one_mesh<Logits, Targets>,
                "distx: cross_entropy: the operands are on meshes of different types");
  if constexpr (detail::Applicable<Rule, Logits, Targets>) {
    using detail::maxima_of_rows, detail::sums_of_rows, detail::cross_entropy_of_rows;
    using T = detail::value_of<Logits>;
    using Space = typename Logits::space;
    const detail::Caller caller{"cross_entropy", location};
    auto losses = detail::result_for<Rule>(caller, logits, targets);
    const auto stream = losses.stream();
    auto log_sums = detail::result_for<rules::CrossEntropyLogSums>(caller, logits, targets);
    const auto part = detail::as_rows(detail::local_view(logits));
    const auto maxima = detail::buffer_on<T, Space>(stream, part.rows, uninitialized);
    const auto both = detail::buffer_on<double, Space>(stream, 2 * part.rows, uninitialized);
    const Span<const T, Space> row_maxima(maxima.span());
    const auto sums = both.span().first(part.rows), at_targets = both.span().subspan(part.rows, part.rows);
    constexpr std::size_t last = detail::rank_of<Logits> - 1;
    maxima_of_rows(stream, part, maxima.span());
    detail::reduce_rows(logits, maxima.span(), Max{}, location);
    sums_of_rows(stream, part, detail::local_view(targets).values(), detail::box_of(logits).begin[last],
                 logits.extents()[last], row_maxima, sums, at_targets,
                 detail::context_of(logits.mesh(), "cross_entropy", location));
    detail::reduce_rows(logits, both.span(), Sum{}, location);
    cross_entropy_of_rows(stream, row_maxima, Span<const double, Space>(sums), Span<const double, Space>(at_targets),
                          losses.local(), log_sums.local());
    return CrossEntropyResult<decltype(losses), decltype(log_sums)>{std::move(losses), std::move(log_sums)};
  } else {
    return detail::never<CrossEntropyResult<detail::PlaceholderResult<Rule, Logits, Targets>,
                                            detail::PlaceholderResult<rules::CrossEntropyLogSums, Logits, Targets>>>();
  }
}

/// Returns the gradient of logits (…, v) in `cross_entropy`: (softmax(row) - onehot(target)) times the gradient of the
/// row's loss. Local, stream-ordered.
///
/// Targets, `log_sums` and `gradient` (…) have the layout of `cross_entropy`'s result, which gave `log_sums`; where all
/// are replicated, `gradient` may be Partial, and then the result is. The result has the extents and the layout of the
/// logits.
/// @throws DataError for a target outside [0, v); in GPU memory its row is NaNs
/// @throws InvalidArgument if the extents do not match, or the operands are on different meshes
template <DistributedTensor Logits, DistributedTensor Targets, DistributedTensor Sums, DistributedTensor G>
[[nodiscard]] auto cross_entropy_backward(const Logits& logits, const Targets& targets, const Sums& log_sums,
                                          const G& gradient,
                                          std::source_location location = std::source_location::current()) {
  using Rule = rules::CrossEntropyBackward;
  static_assert(detail::is_supported<detail::missing_case<Rule, Logits, Targets, Sums, G>>,
                "distx: cross_entropy_backward: the gradient's layout differs from that of the losses, or the logits "
                "are Partial; redistribute it");
  return detail::applied<Rule>(
      {"cross_entropy_backward", location},
      [&](auto stream, auto rows, auto selected, auto sums, auto grads, auto out) {
        using detail::cross_entropy_gradient;
        constexpr std::size_t last = detail::rank_of<Logits> - 1;
        cross_entropy_gradient(stream, detail::as_rows(rows), selected.values(), detail::box_of(logits).begin[last],
                               logits.extents()[last], sums.values(), grads.values(), detail::as_rows(out),
                               detail::context_of(logits.mesh(), "cross_entropy_backward", location));
      },
      logits, targets, log_sums, gradient);
}

}  // namespace ops

}  // namespace distx::inline DISTX_ABI
