// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/memory/local_matmul.hpp"
#include "distx/tensor/ops/apply.hpp"
#include "distx/tensor/ops/rules.hpp"

// Products over several dimensions, as weights by head need: (batch, length, width) times (width, 3, heads, size).
namespace distx {

namespace detail {

/// Of the first operand's extents those from `begin` on, so many, then those of the second.
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
/// The first so many dimensions as rows.
template <class T, std::size_t Rank, class Space>
MatrixRef<T, Space> as_matrix(const TensorRef<T, Rank, Space>& x, std::size_t leading) {
  std::size_t rows = 1, columns = 1;
  for (std::size_t d = 0; d < Rank; ++d) (d < leading ? rows : columns) *= x.extent(d);
  return {x.values(), rows, columns};
}

}  // namespace detail

/// x (m…, k…) times w (k…, n…) gives (m…, n…), summed over the `K` dimensions k: linear in each.
template <std::size_t K>
struct Contract {
  static constexpr std::string_view name = "contract";
  static constexpr AxisPlace on(AxisPlace x, AxisPlace w) {
    const std::size_t m = x.dimensions - K;
    if (x.is_replicated() && w.is_replicated()) return places::replicated;
    if (x.is_shard() && x.dim < m && w.is_replicated()) return places::shard(x.dim);
    if (x.is_replicated() && w.is_shard() && w.dim >= K) return places::shard(m + w.dim - K);
    if (x.is_shard() && x.dim >= m && w.is_shard(x.dim - m)) return places::sum;
    if (x.is_sum() && w.is_replicated()) return places::sum;
    if (x.is_replicated() && w.is_sum()) return places::sum;
    return places::none;
  }
  template <std::size_t X, std::size_t W>
  static Extents<X + W - 2 * K> extents(const Extents<X>& x, const Extents<W>& w) {
    if (!detail::agree(x, X - K, w, 0, K)) detail::extents_differ(name, x, w);
    return detail::joined<X + W - 2 * K>(x, 0, X - K, w, K);
  }
};

/// The gradient (m…, k…) with respect to x, from that of the result (m…, n…) and w (k…, n…).
template <std::size_t K>
struct ContractInput {
  static constexpr std::string_view name = "contract_input";
  static constexpr AxisPlace on(AxisPlace gradient, AxisPlace w) {
    const std::size_t m = gradient.dimensions + K - w.dimensions;
    if (gradient.is_replicated() && w.is_replicated()) return places::replicated;
    if (gradient.is_shard() && gradient.dim < m && w.is_replicated()) return places::shard(gradient.dim);
    if (gradient.is_shard() && gradient.dim >= m && w.is_shard(K + gradient.dim - m)) return places::sum;
    if (gradient.is_replicated() && w.is_shard() && w.dim < K) return places::shard(m + w.dim);
    if (gradient.is_sum() && w.is_replicated()) return places::sum;
    if (gradient.is_replicated() && w.is_sum()) return places::sum;
    return places::none;
  }
  template <std::size_t G, std::size_t W>
  static Extents<G + 2 * K - W> extents(const Extents<G>& gradient, const Extents<W>& w) {
    if (!detail::agree(gradient, G + K - W, w, K, W - K)) detail::extents_differ(name, gradient, w);
    return detail::joined<G + 2 * K - W>(gradient, 0, G + K - W, w, 0);
  }
};

/// The gradient (k…, n…) with respect to w, from x (m…, k…) and that of the result (m…, n…).
template <std::size_t K>
struct ContractWeight {
  static constexpr std::string_view name = "contract_weight";
  static constexpr AxisPlace on(AxisPlace x, AxisPlace gradient) {
    const std::size_t m = x.dimensions - K;
    if (x.is_replicated() && gradient.is_replicated()) return places::replicated;
    if (x.is_shard() && x.dim < m && gradient.is_shard(x.dim)) return places::sum;
    if (x.is_shard() && x.dim >= m && gradient.is_replicated()) return places::shard(x.dim - m);
    if (x.is_replicated() && gradient.is_shard() && gradient.dim >= m) return places::shard(K + gradient.dim - m);
    if (x.is_sum() && gradient.is_replicated()) return places::sum;
    if (x.is_replicated() && gradient.is_sum()) return places::sum;
    return places::none;
  }
  template <std::size_t X, std::size_t G>
  static Extents<2 * K + G - X> extents(const Extents<X>& x, const Extents<G>& gradient) {
    if (!detail::agree(x, 0, gradient, 0, X - K)) detail::extents_differ(name, x, gradient);
    return detail::joined<2 * K + G - X>(x, X - K, K, gradient, X - K);
  }
};

/// @name Products over the last `K` dimensions of x, which are the first ones of w
/// @{
template <std::size_t K, class X, class W>
  requires Operands<X, W>
[[nodiscard]] auto contract(const X& x, const W& w) {
  return apply<Contract<K>>(x, w, [](auto stream, auto left, auto right, auto out) {
    detail::multiply(stream, detail::as_matrix(out, rank_of<X> - K), detail::as_matrix(left, rank_of<X> - K),
                     detail::as_matrix(right, K));
  });
}
template <std::size_t K, class G, class W>
  requires Operands<G, W>
[[nodiscard]] auto contract_input(const G& gradient, const W& w) {
  return apply<ContractInput<K>>(gradient, w, [](auto stream, auto left, auto right, auto out) {
    constexpr std::size_t m = rank_of<G> + K - rank_of<W>;
    detail::multiply(stream, detail::as_matrix(out, m), detail::as_matrix(left, m),
                     detail::as_matrix(right, K).transpose());
  });
}
template <std::size_t K, class X, class G>
  requires Operands<X, G>
[[nodiscard]] auto contract_weight(const X& x, const G& gradient) {
  return apply<ContractWeight<K>>(x, gradient, [](auto stream, auto left, auto right, auto out) {
    detail::multiply(stream, detail::as_matrix(out, K), detail::as_matrix(left, rank_of<X> - K).transpose(),
                     detail::as_matrix(right, rank_of<X> - K));
  });
}
/// @}

}  // namespace distx
