// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/ops/rule.hpp"

// The rules of the operations: on one axis of the mesh, one line a case. docs/rules.md shows them as tables.
namespace distx {

namespace detail {

/// @throws MismatchError that names the operation and its operands' extents
template <std::size_t... Ranks>
[[noreturn]] void extents_differ(std::string_view operation, const Extents<Ranks>&... extents) {
  std::string words;
  ((words += (words.empty() ? "" : " and ") + distx::words_of(extents)), ...);
  throw MismatchError("operands of " + words + " elements do not fit", {.operation = operation});
}

}  // namespace detail

/// Any function of each element: of a sum of terms it is not the sum of the terms' values.
struct Elementwise {
  static constexpr std::string_view name = "elementwise";
  static constexpr AxisPlace on(AxisPlace x) {
    if (x.is_replicated() || x.is_shard()) return x;
    return places::none;
  }
  template <std::size_t Rank>
  static Extents<Rank> extents(const Extents<Rank>& x) {
    return x;
  }
};

/// A linear function of each element, such as a multiple.
struct LinearElementwise : Elementwise {
  static constexpr std::string_view name = "linear elementwise";
  static constexpr AxisPlace on(AxisPlace x) {
    if (x.is_replicated() || x.is_shard() || x.is_sum()) return x;
    return places::none;
  }
};

/// Any function of the elements of two tensors at the same index.
struct Zip {
  static constexpr std::string_view name = "zip";
  static constexpr AxisPlace on(AxisPlace x, AxisPlace y) {
    if (x.is_replicated() && y.is_replicated()) return places::replicated;
    if (x.is_shard() && y.is_shard(x.dim)) return x;
    return places::none;
  }
  template <std::size_t Rank>
  static Extents<Rank> extents(const Extents<Rank>& x, const Extents<Rank>& y) {
    if (x != y) detail::extents_differ(name, x, y);
    return x;
  }
};

/// Sums and differences: linear in both together.
struct Add : Zip {
  static constexpr std::string_view name = "add";
  static constexpr AxisPlace on(AxisPlace x, AxisPlace y) {
    if (x.is_sum() && y.is_sum()) return places::sum;
    return Zip::on(x, y);
  }
};

/// Products of elements: linear in each.
struct Multiply : Zip {
  static constexpr std::string_view name = "multiply";
  static constexpr AxisPlace on(AxisPlace x, AxisPlace y) {
    if (x.is_sum() && y.is_replicated()) return places::sum;
    if (x.is_replicated() && y.is_sum()) return places::sum;
    return Zip::on(x, y);
  }
};

/// The gradient of a function of each element: linear in that of its result.
struct ElementwiseBackward : Zip {
  static constexpr std::string_view name = "elementwise backward";
  static constexpr AxisPlace on(AxisPlace x, AxisPlace gradient) {
    if (x.is_replicated() && gradient.is_sum()) return places::sum;
    return Zip::on(x, gradient);
  }
};

/// x (…, n) plus b (n) in each row.
struct AddBias {
  static constexpr std::string_view name = "add_bias";
  static constexpr AxisPlace on(AxisPlace x, AxisPlace b) {
    if (x.is_replicated() && b.is_replicated()) return places::replicated;
    if (x.keeps_rows() && b.is_replicated()) return x;
    if (x.cuts_rows() && b.is_shard(0)) return x;
    if (x.is_sum() && b.is_sum()) return places::sum;
    return places::none;
  }
  template <std::size_t Rank>
  static Extents<Rank> extents(const Extents<Rank>& x, const Extents<1>& b) {
    if (x[Rank - 1] != b[0]) detail::extents_differ(name, x, b);
    return x;
  }
};

/// The sum of all rows, (…, n) to (n): the gradient of what is added to, or multiplied with, each.
struct SumRows {
  static constexpr std::string_view name = "sum_rows";
  static constexpr AxisPlace on(AxisPlace x) {
    if (x.is_replicated()) return places::replicated;
    if (x.keeps_rows()) return places::sum;
    if (x.cuts_rows()) return places::shard(0);
    if (x.is_sum()) return places::sum;
    return places::none;
  }
  template <std::size_t Rank>
  static Extents<1> extents(const Extents<Rank>& x) {
    return {x[Rank - 1]};
  }
};

/// x (…, m, k) times w (k, n) gives (…, m, n): linear in each.
struct Matmul {
  static constexpr std::string_view name = "matmul";
  static constexpr AxisPlace on(AxisPlace x, AxisPlace w) {
    if (x.is_replicated() && w.is_replicated()) return places::replicated;
    if (x.keeps_rows() && w.is_replicated()) return x;
    if (x.is_replicated() && w.is_shard(1)) return places::shard(x.last());
    if (x.cuts_rows() && w.is_shard(0)) return places::sum;
    if (x.is_sum() && w.is_replicated()) return places::sum;
    if (x.is_replicated() && w.is_sum()) return places::sum;
    return places::none;
  }
  template <std::size_t Rank>
  static Extents<Rank> extents(Extents<Rank> x, const Extents<2>& w) {
    if (x[Rank - 1] != w[0]) detail::extents_differ(name, x, w);
    x[Rank - 1] = w[1];
    return x;
  }
};

/// x (…, m, k) times the transpose of w (n, k) gives (…, m, n).
struct MatmulTransposed {
  static constexpr std::string_view name = "matmul by a transpose";
  static constexpr AxisPlace on(AxisPlace x, AxisPlace w) {
    if (x.is_replicated() && w.is_replicated()) return places::replicated;
    if (x.keeps_rows() && w.is_replicated()) return x;
    if (x.is_replicated() && w.is_shard(0)) return places::shard(x.last());
    if (x.cuts_rows() && w.is_shard(1)) return places::sum;
    if (x.is_sum() && w.is_replicated()) return places::sum;
    if (x.is_replicated() && w.is_sum()) return places::sum;
    return places::none;
  }
  template <std::size_t Rank>
  static Extents<Rank> extents(Extents<Rank> x, const Extents<2>& w) {
    if (x[Rank - 1] != w[1]) detail::extents_differ(name, x, w);
    x[Rank - 1] = w[0];
    return x;
  }
};

/// The transpose of x (…, m) times y (…, n) gives (m, n), summed over all rows.
struct TransposedMatmul {
  static constexpr std::string_view name = "matmul of a transpose";
  static constexpr AxisPlace on(AxisPlace x, AxisPlace y) {
    if (x.is_replicated() && y.is_replicated()) return places::replicated;
    if (x.keeps_rows() && y.is_shard(x.dim)) return places::sum;
    if (x.cuts_rows() && y.is_replicated()) return places::shard(0);
    if (x.is_replicated() && y.cuts_rows()) return places::shard(1);
    if (x.is_sum() && y.is_replicated()) return places::sum;
    if (x.is_replicated() && y.is_sum()) return places::sum;
    return places::none;
  }
  template <std::size_t Rank>
  static Extents<2> extents(const Extents<Rank>& x, const Extents<Rank>& y) {
    for (std::size_t d = 0; d + 1 < Rank; ++d)
      if (x[d] != y[d]) detail::extents_differ(name, x, y);
    return {x[Rank - 1], y[Rank - 1]};
  }
};

/// The sum, or the mean, over one dimension, which goes.
template <std::size_t Dim>
struct SumOver {
  static constexpr std::string_view name = "sum_over";
  static constexpr AxisPlace on(AxisPlace x) {
    if (x.is_replicated()) return places::replicated;
    if (x.is_shard(Dim)) return places::sum;
    if (x.is_shard()) return places::shard(x.dim < Dim ? x.dim : x.dim - 1);
    if (x.is_sum()) return places::sum;
    return places::none;
  }
  template <std::size_t Rank>
  static Extents<Rank - 1> extents(const Extents<Rank>& x) {
    static_assert(Dim < Rank, "distx: the tensor has no such dimension to reduce");
    Extents<Rank - 1> left{};
    for (std::size_t d = 0; d + 1 < Rank; ++d) left[d] = x[d < Dim ? d : d + 1];
    return left;
  }
};

/// The greatest over one dimension.
template <std::size_t Dim>
struct MaxOver : SumOver<Dim> {
  static constexpr std::string_view name = "max_over";
  static constexpr AxisPlace on(AxisPlace x) {
    if (x.is_replicated()) return places::replicated;
    if (x.is_shard(Dim)) return places::max;
    if (x.is_shard()) return places::shard(x.dim < Dim ? x.dim : x.dim - 1);
    if (x.is_max()) return places::max;
    return places::none;
  }
};

/// The gradient of a sum or a mean of x over one dimension, from that of its result.
template <std::size_t Dim>
struct SumOverBackward {
  static constexpr std::string_view name = "sum_over_backward";
  static constexpr AxisPlace on(AxisPlace x, AxisPlace gradient) {
    if (x.is_replicated() && gradient.is_replicated()) return places::replicated;
    if (x.is_shard(Dim) && gradient.is_replicated()) return x;
    if (x.is_shard() && x.dim != Dim && gradient.is_shard(x.dim < Dim ? x.dim : x.dim - 1)) return x;
    if (x.is_replicated() && gradient.is_sum()) return places::sum;
    return places::none;
  }
  template <std::size_t Rank>
  static Extents<Rank> extents(const Extents<Rank>& x, const Extents<Rank - 1>& gradient) {
    if (SumOver<Dim>::extents(x) != gradient) detail::extents_differ(name, x, gradient);
    return x;
  }
};

/// The gradient of the greatest over one dimension: of x, the result and its gradient.
template <std::size_t Dim>
struct MaxOverBackward {
  static constexpr std::string_view name = "max_over_backward";
  static constexpr AxisPlace on(AxisPlace x, AxisPlace greatest, AxisPlace gradient) {
    if (greatest.is_replicated() && !gradient.is_shard()) return SumOverBackward<Dim>::on(x, gradient);
    if (greatest.is_shard() && gradient.is_shard(greatest.dim)) return SumOverBackward<Dim>::on(x, gradient);
    return places::none;
  }
  template <std::size_t Rank>
  static Extents<Rank> extents(const Extents<Rank>& x, const Extents<Rank - 1>& greatest,
                               const Extents<Rank - 1>& gradient) {
    if (greatest != gradient) detail::extents_differ(name, greatest, gradient);
    return SumOverBackward<Dim>::extents(x, gradient);
  }
};

/// Any function of whole rows, such as softmax.
struct Rowwise : Elementwise {
  static constexpr std::string_view name = "rowwise";
  static constexpr AxisPlace on(AxisPlace x) {
    if (x.is_replicated() || x.keeps_rows()) return x;
    return places::none;
  }
};

/// The gradient of a function of rows: linear in that of its result.
struct RowwiseBackward : Zip {
  static constexpr std::string_view name = "rowwise backward";
  static constexpr AxisPlace on(AxisPlace y, AxisPlace gradient) {
    if (y.is_replicated() && gradient.is_replicated()) return places::replicated;
    if (y.keeps_rows() && gradient.is_shard(y.dim)) return y;
    if (y.is_replicated() && gradient.is_sum()) return places::sum;
    return places::none;
  }
};

/// Dimension i of the result is dimension From[i] of x.
template <std::size_t... From>
struct Transpose {
  static constexpr std::string_view name = "transpose";
  static constexpr std::size_t from[sizeof...(From)] = {From...};
  static constexpr AxisPlace on(AxisPlace x) {
    if (x.is_replicated()) return places::replicated;
    if (x.is_shard()) return places::shard(to(x.dim));
    if (x.is_sum() || x.is_max()) return x;
    return places::none;
  }
  static Extents<sizeof...(From)> extents(const Extents<sizeof...(From)>& x) { return {x[From]...}; }

 private:
  static constexpr std::size_t to(std::size_t dim) {
    std::size_t i = 0;
    while (from[i] != dim) ++i;
    return i;
  }
};

/// Rows of x (…, n) brought to mean 0 and variance 1, times a gain (n), plus a bias (n).
struct LayerNorm {
  static constexpr std::string_view name = "layer_norm";
  static constexpr AxisPlace on(AxisPlace x, AxisPlace gain, AxisPlace bias) {
    if (x.is_replicated() && gain.is_replicated() && bias.is_replicated()) return places::replicated;
    if (x.keeps_rows() && gain.is_replicated() && bias.is_replicated()) return x;
    return places::none;
  }
  template <std::size_t Rank>
  static Extents<Rank> extents(const Extents<Rank>& x, const Extents<1>& gain, const Extents<1>& bias) {
    if (x[Rank - 1] != gain[0] || gain != bias) detail::extents_differ(name, x, gain, bias);
    return x;
  }
};

/// The gradient of the rows. @see LayerNormGain for that of the gain; that of the bias is `SumRows`.
struct LayerNormBackward {
  static constexpr std::string_view name = "layer_norm_backward";
  static constexpr AxisPlace on(AxisPlace x, AxisPlace gain, AxisPlace gradient) {
    if (gain.is_replicated()) return RowwiseBackward::on(x, gradient);
    return places::none;
  }
  template <std::size_t Rank>
  static Extents<Rank> extents(const Extents<Rank>& x, const Extents<1>& gain, const Extents<Rank>& gradient) {
    if (x[Rank - 1] != gain[0] || x != gradient) detail::extents_differ(name, x, gain, gradient);
    return x;
  }
};

/// The gradient of a layer norm's gain, from x and the gradient of the result.
struct LayerNormGain {
  static constexpr std::string_view name = "layer_norm_backward";
  static constexpr AxisPlace on(AxisPlace x, AxisPlace gradient) {
    if (x.is_replicated() && gradient.is_replicated()) return places::replicated;
    if (x.keeps_rows() && gradient.is_shard(x.dim)) return places::sum;
    if (x.is_replicated() && gradient.is_sum()) return places::sum;
    return places::none;
  }
  template <std::size_t Rank>
  static Extents<1> extents(const Extents<Rank>& x, const Extents<Rank>&) {
    return {x[Rank - 1]};
  }
};

/// The rows of a table (v, n) that ids (…) name, as (…, n): linear in the table.
struct Embedding {
  static constexpr std::string_view name = "embedding";
  static constexpr AxisPlace on(AxisPlace ids, AxisPlace table) {
    if (ids.is_replicated() && table.is_replicated()) return places::replicated;
    if (ids.is_shard() && table.is_replicated()) return places::shard(ids.dim);
    if (ids.is_replicated() && table.is_shard(0)) return places::sum;
    if (ids.is_replicated() && table.is_shard(1)) return places::shard(ids.dimensions);
    if (ids.is_replicated() && table.is_sum()) return places::sum;
    return places::none;
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

/// The gradient of the table, which lies as the table does where it can.
struct EmbeddingBackward {
  static constexpr std::string_view name = "embedding_backward";
  static constexpr AxisPlace on(AxisPlace table, AxisPlace ids, AxisPlace gradient) {
    if (table.is_replicated() && ids.is_replicated() && gradient.is_replicated()) return places::replicated;
    if (table.is_replicated() && ids.is_shard() && gradient.is_shard(ids.dim)) return places::sum;
    if (table.is_shard(0) && ids.is_replicated() && gradient.is_replicated()) return table;
    if (table.is_shard(1) && ids.is_replicated() && gradient.cuts_rows()) return table;
    if (table.is_replicated() && ids.is_replicated() && gradient.is_sum()) return places::sum;
    return places::none;
  }
  template <std::size_t Rank>
  static Extents<2> extents(const Extents<2>& table, const Extents<Rank>& ids, const Extents<Rank + 1>& gradient) {
    if (Embedding::extents(ids, table) != gradient) detail::extents_differ(name, table, ids, gradient);
    return table;
  }
};

/// -log(softmax(row)[target]) of each row of logits (…, v) and its target (…).
struct CrossEntropy {
  static constexpr std::string_view name = "cross_entropy";
  static constexpr AxisPlace on(AxisPlace logits, AxisPlace targets) {
    if (logits.is_replicated() && targets.is_replicated()) return places::replicated;
    if (logits.keeps_rows() && targets.is_shard(logits.dim)) return places::shard(logits.dim);
    if (logits.cuts_rows() && targets.is_replicated()) return places::replicated;
    return places::none;
  }
  template <std::size_t Rank>
  static Extents<Rank - 1> extents(const Extents<Rank>& logits, const Extents<Rank - 1>& targets) {
    if (!std::equal(targets.begin(), targets.end(), logits.begin())) detail::extents_differ(name, logits, targets);
    return targets;
  }
};

/// The gradient of the logits, from that of the rows' cross entropies.
struct CrossEntropyBackward {
  static constexpr std::string_view name = "cross_entropy_backward";
  static constexpr AxisPlace on(AxisPlace logits, AxisPlace targets, AxisPlace log_sums, AxisPlace gradient) {
    if (logits.is_replicated() && targets.is_replicated() && log_sums.is_replicated() && gradient.is_replicated())
      return places::replicated;
    if (logits.keeps_rows() && targets.is_shard(logits.dim) && log_sums.is_shard(logits.dim) &&
        gradient.is_shard(logits.dim))
      return logits;
    if (logits.cuts_rows() && targets.is_replicated() && log_sums.is_replicated() && gradient.is_replicated())
      return logits;
    if (logits.is_replicated() && targets.is_replicated() && log_sums.is_replicated() && gradient.is_sum())
      return places::sum;
    return places::none;
  }
  template <std::size_t Rank>
  static Extents<Rank> extents(const Extents<Rank>& logits, const Extents<Rank - 1>& targets,
                               const Extents<Rank - 1>& log_sums, const Extents<Rank - 1>& gradient) {
    if (CrossEntropy::extents(logits, targets) != gradient || log_sums != gradient)
      detail::extents_differ(name, logits, targets, gradient);
    return logits;
  }
};

}  // namespace distx
