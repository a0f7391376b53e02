// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/ops/rule.hpp"

// The rules of the operations: on one axis of the mesh, one line per case. docs/rules.md shows them as tables.
namespace distx::inline DISTX_ABI::detail {

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

}  // namespace distx::inline DISTX_ABI::detail

namespace distx::inline DISTX_ABI::rules {

/// Any function of each element. Not linear, so a Partial operand is not supported.
struct Elementwise {
  static constexpr std::string_view name = "elementwise";
  static constexpr AxisPlacement on(AxisPlacement x) {
    if (x.is_replicated() || x.is_shard()) return x;
    return unsupported;
  }
  template <std::size_t Rank>
  static Extents<Rank> extents(const Extents<Rank>& x) {
    return x;
  }
};

/// A linear function of each element, such as a multiple.
struct LinearElementwise : Elementwise {
  static constexpr std::string_view name = "linear elementwise";
  static constexpr AxisPlacement on(AxisPlacement x) {
    if (x.is_replicated() || x.is_shard() || x.is_sum()) return x;
    return unsupported;
  }
};

/// Any function of the elements of two tensors at the same index.
struct Zip {
  static constexpr std::string_view name = "zip";
  static constexpr AxisPlacement on(AxisPlacement x, AxisPlacement y) {
    if (x.is_replicated() && y.is_replicated()) return replicated;
    if (x.is_shard() && y.is_shard(x.dim)) return x;
    return unsupported;
  }
  template <std::size_t Rank>
  static Extents<Rank> extents(const Extents<Rank>& x, const Extents<Rank>& y) {
    if (x != y) extents_mismatch("they must be equal", x, y);
    return x;
  }
};

/// Sums and differences of two tensors: linear in both together.
struct Add : Zip {
  static constexpr std::string_view name = "add";
  static constexpr AxisPlacement on(AxisPlacement x, AxisPlacement y) {
    if (x.is_sum() && y.is_sum()) return partial_sum;
    return Zip::on(x, y);
  }
};

/// Products of two tensors, element by element: linear in each.
struct Multiply : Zip {
  static constexpr std::string_view name = "multiply";
  static constexpr AxisPlacement on(AxisPlacement x, AxisPlacement y) {
    if (x.is_sum() && y.is_replicated()) return partial_sum;
    if (x.is_replicated() && y.is_sum()) return partial_sum;
    return Zip::on(x, y);
  }
};

/// The gradient of a function of each element: linear in the gradient of the result.
struct ElementwiseBackward : Zip {
  static constexpr std::string_view name = "elementwise backward";
  static constexpr AxisPlacement on(AxisPlacement x, AxisPlacement gradient) {
    if (x.is_replicated() && gradient.is_sum()) return partial_sum;
    return Zip::on(x, gradient);
  }
};

/// x (m…, n…) plus b (n…) gives (m…, n…).
struct AddTrailing {
  static constexpr std::string_view name = "add_trailing";
  static constexpr AxisPlacement on(AxisPlacement x, AxisPlacement b) {
    const std::size_t m = x.dimensions - b.dimensions;
    if (x.is_replicated() && b.is_replicated()) return replicated;
    if (x.is_shard() && x.dim < m && b.is_replicated()) return shard(x.dim);
    if (x.is_shard() && x.dim >= m && b.is_shard(x.dim - m)) return shard(x.dim);
    if (x.is_sum() && b.is_sum()) return partial_sum;
    return unsupported;
  }
  template <std::size_t X, std::size_t B>
    requires(B < X)
  static Extents<X> extents(const Extents<X>& x, const Extents<B>& b) {
    if (!detail::agree(x, X - B, b, 0, B)) extents_mismatch("the last extents of x must equal those of b", x, b);
    return x;
  }
};

/// The sum of x (m…, n…) over all but the last `N` dimensions n gives (n…): the gradient of what `add_trailing` adds.
template <std::size_t N>
struct SumLeading {
  static constexpr std::string_view name = "sum_leading";
  static constexpr AxisPlacement on(AxisPlacement x) {
    const std::size_t m = x.dimensions - N;
    if (x.is_replicated()) return replicated;
    if (x.is_shard() && x.dim < m) return partial_sum;
    if (x.is_shard()) return shard(x.dim - m);
    if (x.is_sum()) return partial_sum;
    return unsupported;
  }
  template <std::size_t X>
    requires(N <= X)
  static Extents<N> extents(const Extents<X>& x) {
    return detail::joined<N>(x, X - N, N, x, 0);
  }
};

/// x (…, n) plus b (n) in each row gives (…, n).
struct AddBias : AddTrailing {
  static constexpr std::string_view name = "add_bias";
  template <std::size_t Rank>
  static Extents<Rank> extents(const Extents<Rank>& x, const Extents<1>& b) {
    if (x[Rank - 1] != b[0]) extents_mismatch("the last extent of x must equal the extent of b", x, b);
    return x;
  }
};

/// The sum of all rows of x (…, n) gives (n): the gradient of a bias.
struct SumRows : SumLeading<1> {
  static constexpr std::string_view name = "sum_rows";
};

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
      extents_mismatch("the last extents of both must be equal", gradient, w);
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
      extents_mismatch("the first extents of both must be equal", x, gradient);
    return detail::joined<2 * K + G - X>(x, X - K, K, gradient, X - K);
  }
};

/// x (…, m, k) times w (k, n) gives (…, m, n): linear in each.
struct Matmul : Contract<1> {
  static constexpr std::string_view name = "matmul";
  template <std::size_t Rank>
    requires(Rank > 0)
  static Extents<Rank> extents(const Extents<Rank>& x, const Extents<2>& w) {
    return Contract<1>::extents(x, w);
  }
};

/// x (…, m, k) times the transpose of w (n, k) gives (…, m, n).
struct MatmulTransposed : ContractInput<1> {
  static constexpr std::string_view name = "matmul by a transpose";
  template <std::size_t Rank>
    requires(Rank > 0)
  static Extents<Rank> extents(const Extents<Rank>& x, const Extents<2>& w) {
    return ContractInput<1>::extents(x, w);
  }
};

/// The transpose of x (…, m) times y (…, n) gives (m, n), summed over all rows.
struct TransposedMatmul : ContractWeight<1> {
  static constexpr std::string_view name = "matmul of a transpose";
  template <std::size_t Rank>
    requires(Rank > 0)
  static Extents<2> extents(const Extents<Rank>& x, const Extents<Rank>& y) {
    return ContractWeight<1>::extents(x, y);
  }
};

/// The sum or the mean over dimension `Dim`, which the result does not have.
template <std::size_t Dim>
struct SumOver {
  static constexpr std::string_view name = "sum_over";
  static constexpr AxisPlacement on(AxisPlacement x) {
    if (x.is_replicated()) return replicated;
    if (x.is_shard(Dim)) return partial_sum;
    if (x.is_shard()) return shard(x.dim < Dim ? x.dim : x.dim - 1);
    if (x.is_sum()) return partial_sum;
    return unsupported;
  }
  template <std::size_t Rank>
    requires(Dim < Rank)
  static Extents<Rank - 1> extents(const Extents<Rank>& x) {
    Extents<Rank - 1> left{};
    for (std::size_t d = 0; d + 1 < Rank; ++d) left[d] = x[d < Dim ? d : d + 1];
    return left;
  }
};

/// The maximum over dimension `Dim`, which the result does not have.
template <std::size_t Dim>
struct MaxOver : SumOver<Dim> {
  static constexpr std::string_view name = "max_over";
  static constexpr AxisPlacement on(AxisPlacement x) {
    if (x.is_replicated()) return replicated;
    if (x.is_shard(Dim)) return partial_max;
    if (x.is_shard()) return shard(x.dim < Dim ? x.dim : x.dim - 1);
    if (x.is_max()) return partial_max;
    return unsupported;
  }
};

/// The gradient of the sum or the mean of x over dimension `Dim`, from the gradient of the result.
template <std::size_t Dim>
struct SumOverBackward {
  static constexpr std::string_view name = "sum_over_backward";
  static constexpr AxisPlacement on(AxisPlacement x, AxisPlacement gradient) {
    if (x.is_replicated() && gradient.is_replicated()) return replicated;
    if (x.is_shard(Dim) && gradient.is_replicated()) return x;
    if (x.is_shard() && x.dim != Dim && gradient.is_shard(x.dim < Dim ? x.dim : x.dim - 1)) return x;
    if (x.is_replicated() && gradient.is_sum()) return partial_sum;
    return unsupported;
  }
  template <std::size_t Rank>
    requires(Dim < Rank)
  static Extents<Rank> extents(const Extents<Rank>& x, const Extents<Rank - 1>& gradient) {
    if (SumOver<Dim>::extents(x) != gradient)
      extents_mismatch("the gradient must have the extents of x without the reduced dimension", x, gradient);
    return x;
  }
};

/// The gradient of the maximum of x over dimension `Dim`, from x, the result and its gradient.
template <std::size_t Dim>
struct MaxOverBackward {
  static constexpr std::string_view name = "max_over_backward";
  static constexpr AxisPlacement on(AxisPlacement x, AxisPlacement maximum, AxisPlacement gradient) {
    if (maximum.is_replicated() && !gradient.is_shard()) return SumOverBackward<Dim>::on(x, gradient);
    if (maximum.is_shard() && gradient.is_shard(maximum.dim)) return SumOverBackward<Dim>::on(x, gradient);
    return unsupported;
  }
  template <std::size_t Rank>
    requires(Dim < Rank)
  static Extents<Rank> extents(const Extents<Rank>& x, const Extents<Rank - 1>& maximum,
                               const Extents<Rank - 1>& gradient) {
    if (maximum != gradient) extents_mismatch("the result and its gradient must have equal extents", maximum, gradient);
    return SumOverBackward<Dim>::extents(x, gradient);
  }
};

/// Any function of whole rows, such as softmax.
struct Rowwise : Elementwise {
  static constexpr std::string_view name = "rowwise";
  static constexpr AxisPlacement on(AxisPlacement x) {
    if (x.is_replicated() || x.shards_other_dim()) return x;
    return unsupported;
  }
};

/// The gradient of a function of rows, from its result: linear in the gradient of the result.
struct RowwiseBackward : Zip {
  static constexpr std::string_view name = "rowwise backward";
  static constexpr AxisPlacement on(AxisPlacement y, AxisPlacement gradient) {
    if (y.is_replicated() && gradient.is_replicated()) return replicated;
    if (y.shards_other_dim() && gradient.is_shard(y.dim)) return y;
    if (y.is_replicated() && gradient.is_sum()) return partial_sum;
    return unsupported;
  }
};

/// Dimension i of the result is dimension From[i] of x.
template <std::size_t... From>
struct Transpose {
  static constexpr std::string_view name = "transpose";
  static constexpr std::size_t from[sizeof...(From)] = {From...};
  static constexpr AxisPlacement on(AxisPlacement x) {
    if (x.is_replicated()) return replicated;
    if (x.is_shard()) return shard(to(x.dim));
    if (x.is_sum() || x.is_max()) return x;
    return unsupported;
  }
  static Extents<sizeof...(From)> extents(const Extents<sizeof...(From)>& x) { return {x[From]...}; }

 private:
  static constexpr std::size_t to(std::size_t dim) {
    std::size_t i = 0;
    while (from[i] != dim) ++i;
    return i;
  }
};

/// Rows of x (…, n) normalized to mean 0 and variance 1, times a weight (n), plus a bias (n).
struct LayerNorm {
  static constexpr std::string_view name = "layer_norm";
  static constexpr AxisPlacement on(AxisPlacement x, AxisPlacement weight, AxisPlacement bias) {
    if (x.is_replicated() && weight.is_replicated() && bias.is_replicated()) return replicated;
    if (x.shards_other_dim() && weight.is_replicated() && bias.is_replicated()) return x;
    return unsupported;
  }
  template <std::size_t Rank>
  static Extents<Rank> extents(const Extents<Rank>& x, const Extents<1>& weight, const Extents<1>& bias) {
    if (x[Rank - 1] != weight[0] || weight != bias)
      extents_mismatch("the last extent of x must equal the extents of the weight and the bias", x, weight, bias);
    return x;
  }
};

/// The gradient of x. @see LayerNormWeight for that of the weight; that of the bias is `SumRows`.
struct LayerNormBackward {
  static constexpr std::string_view name = "layer_norm_backward";
  static constexpr AxisPlacement on(AxisPlacement x, AxisPlacement weight, AxisPlacement gradient) {
    if (weight.is_replicated()) return RowwiseBackward::on(x, gradient);
    return unsupported;
  }
  template <std::size_t Rank>
  static Extents<Rank> extents(const Extents<Rank>& x, const Extents<1>& weight, const Extents<Rank>& gradient) {
    if (x[Rank - 1] != weight[0] || x != gradient)
      extents_mismatch("the gradient must have the extents of x, whose last must equal the weight's", x, weight,
                       gradient);
    return x;
  }
};

/// The gradient of a layer norm's weight, from x and the gradient of the result.
struct LayerNormWeight {
  static constexpr std::string_view name = "layer_norm_backward";
  static constexpr AxisPlacement on(AxisPlacement x, AxisPlacement gradient) {
    if (x.is_replicated() && gradient.is_replicated()) return replicated;
    if (x.shards_other_dim() && gradient.is_shard(x.dim)) return partial_sum;
    if (x.is_replicated() && gradient.is_sum()) return partial_sum;
    return unsupported;
  }
  template <std::size_t Rank>
  static Extents<1> extents(const Extents<Rank>& x, const Extents<Rank>&) {
    return {x[Rank - 1]};
  }
};

/// The rows of a table (v, n) selected by ids (…) give (…, n): linear in the table.
struct Embedding {
  static constexpr std::string_view name = "embedding";
  static constexpr AxisPlacement on(AxisPlacement ids, AxisPlacement table) {
    if (ids.is_replicated() && table.is_replicated()) return replicated;
    if (ids.is_shard() && table.is_replicated()) return shard(ids.dim);
    if (ids.is_replicated() && table.is_shard(0)) return partial_sum;
    if (ids.is_replicated() && table.is_shard(1)) return shard(ids.dimensions);
    if (ids.is_replicated() && table.is_sum()) return partial_sum;
    return unsupported;
  }
  template <std::size_t Rank>
  static Extents<Rank + 1> extents(const Extents<Rank>& ids, const Extents<2>& table) {
    Extents<Rank + 1> rows{};
    std::copy(ids.begin(), ids.end(), rows.begin());
    rows[Rank] = table[1];
    return rows;
  }
  template <class Id, class T>
  using value_type = T;
};

/// The gradient of the table (v, n), from ids (…) and the gradient of the result (…, n).
struct EmbeddingBackward {
  static constexpr std::string_view name = "embedding_backward";
  static constexpr AxisPlacement on(AxisPlacement table, AxisPlacement ids, AxisPlacement gradient) {
    if (table.is_replicated() && ids.is_replicated() && gradient.is_replicated()) return replicated;
    if (table.is_replicated() && ids.is_shard() && gradient.is_shard(ids.dim)) return partial_sum;
    if (table.is_shard(0) && ids.is_replicated() && gradient.is_replicated()) return table;
    if (table.is_shard(1) && ids.is_replicated() && gradient.shards_last_dim()) return table;
    if (table.is_replicated() && ids.is_replicated() && gradient.is_sum()) return partial_sum;
    return unsupported;
  }
  template <std::size_t Rank>
  static Extents<2> extents(const Extents<2>& table, const Extents<Rank>& ids, const Extents<Rank + 1>& gradient) {
    if (Embedding::extents(ids, table) != gradient)
      extents_mismatch("the gradient must have the extents of the ids, then the table's last", table, ids, gradient);
    return table;
  }
};

/// -log(softmax(row)[target]) of each row of logits (…, v) and its target (…) gives (…).
struct CrossEntropy {
  static constexpr std::string_view name = "cross_entropy";
  static constexpr AxisPlacement on(AxisPlacement logits, AxisPlacement targets) {
    if (logits.is_replicated() && targets.is_replicated()) return replicated;
    if (logits.shards_other_dim() && targets.is_shard(logits.dim)) return shard(logits.dim);
    if (logits.shards_last_dim() && targets.is_replicated()) return replicated;
    return unsupported;
  }
  template <std::size_t Rank>
  static Extents<Rank - 1> extents(const Extents<Rank>& logits, const Extents<Rank - 1>& targets) {
    if (!std::equal(targets.begin(), targets.end(), logits.begin()))
      extents_mismatch("the targets must have the extents of the logits without the last", logits, targets);
    return targets;
  }
};

/// The logs of the rows' sums of exponentials, as doubles.
struct CrossEntropyLogSums : CrossEntropy {
  template <class Logits, class Targets>
  using value_type = double;
};

/// The gradient of the logits, from the gradient of the rows' losses.
struct CrossEntropyBackward {
  static constexpr std::string_view name = "cross_entropy_backward";
  static constexpr AxisPlacement on(AxisPlacement logits, AxisPlacement targets, AxisPlacement log_sums,
                                    AxisPlacement gradient) {
    if (logits.is_replicated() && targets.is_replicated() && log_sums.is_replicated() && gradient.is_replicated())
      return replicated;
    if (logits.shards_other_dim() && targets.is_shard(logits.dim) && log_sums.is_shard(logits.dim) &&
        gradient.is_shard(logits.dim))
      return logits;
    if (logits.shards_last_dim() && targets.is_replicated() && log_sums.is_replicated() && gradient.is_replicated())
      return logits;
    if (logits.is_replicated() && targets.is_replicated() && log_sums.is_replicated() && gradient.is_sum())
      return partial_sum;
    return unsupported;
  }
  template <std::size_t Rank>
  static Extents<Rank> extents(const Extents<Rank>& logits, const Extents<Rank - 1>& targets,
                               const Extents<Rank - 1>& log_sums, const Extents<Rank - 1>& gradient) {
    if (CrossEntropy::extents(logits, targets) != gradient || log_sums != gradient)
      extents_mismatch("targets, log sums and gradient must have the extents of the logits without the last", logits,
                       targets, log_sums, gradient);
    return logits;
  }
};

}  // namespace distx::inline DISTX_ABI::rules
