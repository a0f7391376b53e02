// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/memory/local_matmul.hpp"
#include "distx/tensor/ops/apply.hpp"
#include "distx/tensor/ops/rules.hpp"

// Products that sum over several dimensions, as weights per head need: (batch, length, width) times (width, 3, heads,
// size).
namespace distx::inline DISTX_ABI {

namespace detail {

/// `count` extents of the first operand from `begin` on, then those of the second from `from` on.
template <std::size_t Out, std::size_t Rank, std::size_t More>
Extents<Out> joined(const Extents<Rank>& x, std::size_t begin, std::size_t count, const Extents<More>& y,
                    std::size_t from) {
  Extents<Out> all{};
  for (std::size_t d = 0; d < Out; ++d) all[d] = d < count ? x[begin + d] : y[from + d - count];
  return all;
}
template <std::size_t Rank, std::size_t More>
bool agree(const Extents<Rank>& x, std::size_t begin, const Extents<More>& y, std::size_t from, std::size_t count) {
  for (std::size_t d = 0; d < count; ++d)
    if (x[begin + d] != y[from + d]) return false;
  return true;
}
}  // namespace detail

namespace rules {

/// x (m…, k…) times w (k…, n…), summed over the `K` dimensions k, gives (m…, n…): linear in each.
template <std::size_t K>
struct Contract {
  static constexpr std::string_view name = "contract";
  static constexpr AxisPlacement on(AxisPlacement x, AxisPlacement w) {
    const std::size_t m = x.dimensions - K;
    if (x.is_replicated() && w.is_replicated()) return replicated;
    if (x.is_shard() && x.dim < m && w.is_replicated()) return shard(x.dim);
    if (x.is_replicated() && w.is_shard() && w.dim >= K) return shard(m + w.dim - K);
    if (x.is_shard() && x.dim >= m && w.is_shard(x.dim - m)) return partial_sum;
    if (x.is_sum() && w.is_replicated()) return partial_sum;
    if (x.is_replicated() && w.is_sum()) return partial_sum;
    return unsupported;
  }
  template <std::size_t X, std::size_t W>
    requires(X >= K && W >= K)
  static Extents<X + W - 2 * K> extents(const Extents<X>& x, const Extents<W>& w) {
    if (!detail::agree(x, X - K, w, 0, K)) extents_mismatch("the last extents of x must equal the first of w", x, w);
    return detail::joined<X + W - 2 * K>(x, 0, X - K, w, K);
  }
};

/// The gradient of x (m…, k…), from the gradient of the result (m…, n…) and w (k…, n…).
template <std::size_t K>
struct ContractInput {
  static constexpr std::string_view name = "contract_input";
  static constexpr AxisPlacement on(AxisPlacement gradient, AxisPlacement w) {
    const std::size_t m = gradient.dimensions + K - w.dimensions;
    if (gradient.is_replicated() && w.is_replicated()) return replicated;
    if (gradient.is_shard() && gradient.dim < m && w.is_replicated()) return shard(gradient.dim);
    if (gradient.is_shard() && gradient.dim >= m && w.is_shard(K + gradient.dim - m)) return partial_sum;
    if (gradient.is_replicated() && w.is_shard() && w.dim < K) return shard(m + w.dim);
    if (gradient.is_sum() && w.is_replicated()) return partial_sum;
    if (gradient.is_replicated() && w.is_sum()) return partial_sum;
    return unsupported;
  }
  template <std::size_t G, std::size_t W>
    requires(W >= K && G + K >= W)
  static Extents<G + 2 * K - W> extents(const Extents<G>& gradient, const Extents<W>& w) {
    if (!detail::agree(gradient, G + K - W, w, K, W - K))
      extents_mismatch("the last extents of the gradient must equal those of w", gradient, w);
    return detail::joined<G + 2 * K - W>(gradient, 0, G + K - W, w, 0);
  }
};

/// The gradient of w (k…, n…), from x (m…, k…) and the gradient of the result (m…, n…).
template <std::size_t K>
struct ContractWeight {
  static constexpr std::string_view name = "contract_weight";
  static constexpr AxisPlacement on(AxisPlacement x, AxisPlacement gradient) {
    const std::size_t m = x.dimensions - K;
    if (x.is_replicated() && gradient.is_replicated()) return replicated;
    if (x.is_shard() && x.dim < m && gradient.is_shard(x.dim)) return partial_sum;
    if (x.is_shard() && x.dim >= m && gradient.is_replicated()) return shard(x.dim - m);
    if (x.is_replicated() && gradient.is_shard() && gradient.dim >= m) return shard(K + gradient.dim - m);
    if (x.is_sum() && gradient.is_replicated()) return partial_sum;
    if (x.is_replicated() && gradient.is_sum()) return partial_sum;
    return unsupported;
  }
  template <std::size_t X, std::size_t G>
    requires(X >= K && G + K >= X)
  static Extents<2 * K + G - X> extents(const Extents<X>& x, const Extents<G>& gradient) {
    if (!detail::agree(x, 0, gradient, 0, X - K))
      extents_mismatch("the first extents of x and of the gradient must be equal", x, gradient);
    return detail::joined<2 * K + G - X>(x, X - K, K, gradient, X - K);
  }
};

}  // namespace rules

namespace detail {

template <class Missing>
consteval void check_contract() {
  constexpr bool x = Missing::operands[0].is_partial(), y = Missing::operands[1].is_partial();
  static_assert(supported_unless < Missing, x && y >,
                "distx: contract: both operands are Partial over one axis, and a product of sums is not the sum of "
                "the products; redistribute one of them to Replicated there");
  static_assert(supported_unless<Missing, x != y>,
                "distx: contract: one operand is Partial over an axis that shards the other, or with an op other "
                "than Sum; redistribute it to Replicated there");
  static_assert(supported_unless < Missing, !x && !y >,
                "distx: contract: the shards of the operands on one axis do not match; redistribute one of them to "
                "Replicated there");
}

}  // namespace detail

namespace ops {

/// @name Products over several dimensions
/// Local: no product communicates; computed or enqueued as `matmul`, by the memory space's own `local_matmul`.
/// Placements are those of `matmul` by analogy and listed in docs/rules.md: where an axis shards a dimension that is
/// summed over, in both operands, the result is Partial over it.
/// @throws InvalidArgument if the extents do not match, or the operands are on different meshes
/// @{

/// Returns x (m…, k…) times w (k…, n…), summed over the `K` dimensions k, which is (m…, n…).
template <std::size_t K, DistributedTensor X, DistributedTensor W>
[[nodiscard]] auto contract(const X& x, const W& w, std::source_location location = std::source_location::current()) {
  using Rule = rules::Contract<K>;
  detail::check_contract<detail::missing_case<Rule, X, W>>();
  return detail::applied<Rule>(
      {"contract", location},
      [](auto stream, auto left, auto right, auto out) {
        constexpr std::size_t m = detail::rank_of<X> - K;
        detail::multiply(stream, detail::as_matrix(out, m), detail::as_matrix(left, m), detail::as_matrix(right, K));
      },
      x, w);
}
/// Returns the gradient of x (m…, k…) in `contract<K>(x, w)`, from the gradient of the result (m…, n…) and w (k…, n…).
template <std::size_t K, DistributedTensor G, DistributedTensor W>
[[nodiscard]] auto contract_input(const G& gradient, const W& w,
                                  std::source_location location = std::source_location::current()) {
  using Rule = rules::ContractInput<K>;
  detail::check_contract<detail::missing_case<Rule, G, W>>();
  return detail::applied<Rule>(
      {"contract_input", location},
      [](auto stream, auto left, auto right, auto out) {
        constexpr std::size_t m = detail::rank_of<G> + K - detail::rank_of<W>;
        detail::multiply(stream, detail::as_matrix(out, m), detail::as_matrix(left, m),
                         detail::as_matrix(right, K).transpose());
      },
      gradient, w);
}
/// Returns the gradient of w (k…, n…) in `contract<K>(x, w)`, from x (m…, k…) and the gradient of the result (m…, n…).
template <std::size_t K, DistributedTensor X, DistributedTensor G>
[[nodiscard]] auto contract_weight(const X& x, const G& gradient,
                                   std::source_location location = std::source_location::current()) {
  using Rule = rules::ContractWeight<K>;
  detail::check_contract<detail::missing_case<Rule, X, G>>();
  return detail::applied<Rule>(
      {"contract_weight", location},
      [](auto stream, auto left, auto right, auto out) {
        constexpr std::size_t m = detail::rank_of<X> - K;
        detail::multiply(stream, detail::as_matrix(out, K), detail::as_matrix(left, m).transpose(),
                         detail::as_matrix(right, m));
      },
      x, gradient);
}
/// @}

}  // namespace ops

}  // namespace distx::inline DISTX_ABI
