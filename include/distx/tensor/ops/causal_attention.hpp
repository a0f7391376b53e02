// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>
#include <vector>

#include "distx/memory/sums.hpp"
#include "distx/tensor/ops/apply.hpp"
#include "distx/tensor/ops/rules.hpp"

namespace distx {

namespace rules {

/// Queries, keys and values (batch, length, 3, heads, size) give (batch, length, heads, size); sharded by batch or by
/// head.
struct CausalAttention {
  static constexpr std::string_view name = "causal_attention";
  static constexpr AxisPlacement on(AxisPlacement x) {
    if (x.is_replicated()) return replicated;
    if (x.is_shard(0)) return shard(0);
    if (x.is_shard(3)) return shard(2);
    return unsupported;
  }
  static Extents<4> extents(const Extents<5>& x) {
    if (x[2] != 3) extents_mismatch("the third extent must be 3, for queries, keys and values", x);
    return {x[0], x[1], x[3], x[4]};
  }
};

/// The gradient of queries, keys and values, from them and the gradient of the result.
struct CausalAttentionBackward {
  static constexpr std::string_view name = "causal_attention_backward";
  static constexpr AxisPlacement on(AxisPlacement x, AxisPlacement gradient) {
    if (x.is_replicated() && gradient.is_replicated()) return replicated;
    if (x.is_shard(0) && gradient.is_shard(0)) return shard(0);
    if (x.is_shard(3) && gradient.is_shard(2)) return shard(3);
    if (x.is_replicated() && gradient.is_sum()) return partial_sum;
    return unsupported;
  }
  static Extents<5> extents(const Extents<5>& x, const Extents<4>& gradient) {
    if (CausalAttention::extents(x) != gradient)
      extents_mismatch("the gradient must be (batch, length, heads, size)", x, gradient);
    return x;
  }
};

}  // namespace rules

namespace detail {

template <class T>
double dot(const T* x, const T* y, std::size_t n) {
  return add_up(0, n, [=](std::size_t i) { return static_cast<double>(x[i]) * y[i]; });
}
template <class T>
void add_multiple(double* to, double factor, const T* from, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] += factor * from[i];
}
template <class T>
void round_row(const double* from, T* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] = static_cast<T>(from[i]);
}

/// The attention weights of a token: the softmax of its scores with itself and each earlier token.
template <class T>
void attend(const T* query, const T* keys, std::size_t stride, std::size_t token, std::size_t size, double* weights) {
  const double root = 1 / std::sqrt(static_cast<double>(size));
  double largest = -std::numeric_limits<double>::infinity();
  for (std::size_t s = 0; s <= token; ++s) {
    weights[s] = root * dot(query, keys + s * stride, size);
    largest = std::max(largest, weights[s]);
  }
  const double share = 1 / add_up(0, token + 1, [&](std::size_t s) {
                         return weights[s] = std::exp(static_cast<T>(weights[s] - largest));
                       });
  for (std::size_t s = 0; s <= token; ++s) weights[s] *= share;
}

/// Calls f(offset of the queries, offset of the outputs) for each head of each batch item.
template <class F>
void for_each_head(const Extents<5>& x, F&& f) {
  const std::size_t row = x[3] * x[4];
  for (std::size_t batch = 0; batch < x[0]; ++batch)
    for (std::size_t head = 0; head < x[3]; ++head)
      f(batch * x[1] * 3 * row + head * x[4], batch * x[1] * row + head * x[4]);
}

/// @name Kernels of the host's memory
/// @{
template <class T>
void causal_attention(HostStream, const TensorRef<const T, 5>& x, const TensorRef<T, 4>& out) {
  const std::size_t length = x.extent(1), size = x.extent(4), row = x.extent(3) * size;
  std::vector<double> weights(length), result(size);
  for_each_head(x.extents(), [&](std::size_t from, std::size_t to) {
    const T* const q = x.data() + from;
    for (std::size_t t = 0; t < length; ++t) {
      attend(q + t * 3 * row, q + row, 3 * row, t, size, weights.data());
      std::fill(result.begin(), result.end(), 0);
      for (std::size_t s = 0; s <= t; ++s) add_multiple(result.data(), weights[s], q + 2 * row + s * 3 * row, size);
      round_row(result.data(), out.data() + to + t * row, size);
    }
  });
}
template <class T>
void causal_attention_backward(HostStream, const TensorRef<const T, 5>& x, const TensorRef<const T, 4>& gradient,
                               const TensorRef<T, 5>& out) {
  const std::size_t length = x.extent(1), size = x.extent(4), row = x.extent(3) * size;
  const double root = 1 / std::sqrt(static_cast<double>(size));
  std::vector<double> weights(length), grads(length), gradients(3 * length * size);
  double *const dq = gradients.data(), *const dk = dq + length * size, *const dv = dk + length * size;
  for_each_head(x.extents(), [&](std::size_t from, std::size_t to) {
    const T* const q = x.data() + from;
    std::fill(gradients.begin(), gradients.end(), 0);
    for (std::size_t t = 0; t < length; ++t) {
      attend(q + t * 3 * row, q + row, 3 * row, t, size, weights.data());
      const T* const g = gradient.data() + to + t * row;
      const double mean = add_up(0, t + 1, [&](std::size_t s) {
        add_multiple(dv + s * size, weights[s], g, size);
        return weights[s] * (grads[s] = dot(g, q + 2 * row + s * 3 * row, size));
      });
      for (std::size_t s = 0; s <= t; ++s) {
        const double score = root * weights[s] * (grads[s] - mean);
        add_multiple(dq + t * size, score, q + row + s * 3 * row, size);
        add_multiple(dk + s * size, score, q + t * 3 * row, size);
      }
    }
    for (std::size_t t = 0; t < 3 * length; ++t)
      round_row(dq + t * size, out.data() + from + (t % length * 3 + t / length) * row, size);
  });
}
/// @}

template <class X>
void reject_causal_attention() {
  using Missing = missing_case<rules::CausalAttention, X>;
  constexpr bool partial = Missing::operands[0].is_partial();
  static_assert(supported_unless<Missing, partial>,
                "distx: causal_attention: the operand is Partial and attention is not linear; redistribute it first");
  static_assert(supported_unless<Missing, !partial>,
                "distx: causal_attention: the operand is sharded in its length, its size or its queries, keys and "
                "values; redistribute it to Replicated or to a Shard of the batch or the heads");
}
template <class X, class G>
void reject_causal_attention_backward() {
  if constexpr (!on_one_mesh<X, G>) {
    static_assert(on_one_mesh<X, G>, "distx: causal_attention_backward: the operands are on meshes of different types");
  } else {
    static_assert(
        is_supported<missing_case<rules::CausalAttentionBackward, X, G>>,
        "distx: causal_attention_backward: the gradient is not sharded as the operand, by batch or by head, or "
        "the operand is Partial; redistribute it");
  }
}

}  // namespace detail

namespace ops {

/// Returns causal multi-head scaled dot-product attention (Vaswani et al., 2017, arXiv 1706.03762): for each token and
/// head, the mean of the values of the token and all earlier ones, weighted by softmax(query · key / sqrt(size)).
///
/// `x` holds queries, keys and values, (batch, length, 3, heads, size); the result is (batch, length, heads, size). On
/// each axis `x` is replicated or sharded in the batch (dimension 0) or the heads (3), and so is the result (0 or 2).
/// Local, on the host's memory, for float and double.
/// @throws InvalidArgument if the third extent is not 3
template <DistributedTensor X>
[[nodiscard]] auto causal_attention(const X& x, std::source_location location = std::source_location::current()) {
  using Rule = rules::CausalAttention;
  if constexpr (detail::Applicable<Rule, X>) {
    return detail::applied<Rule>(
        {"causal_attention", location},
        [](auto in, auto out) { detail::causal_attention(typename X::space::stream{}, in, out); }, x);
  } else {
    detail::reject_causal_attention<X>();
    return detail::placeholder<Rule, X>();
  }
}
/// Returns the gradient of queries, keys and values (batch, length, 3, heads, size) from them and the gradient of the
/// result of `causal_attention` (batch, length, heads, size). Local; computes the attention weights again.
///
/// `gradient` is sharded as the result is; where `x` is replicated it may be Partial, and then the result is.
/// @throws InvalidArgument if the extents do not match, or the operands are on different meshes
template <DistributedTensor X, DistributedTensor G>
[[nodiscard]] auto causal_attention_backward(const X& x, const G& gradient,
                                             std::source_location location = std::source_location::current()) {
  using Rule = rules::CausalAttentionBackward;
  if constexpr (detail::Applicable<Rule, X, G>) {
    return detail::applied<Rule>(
        {"causal_attention_backward", location},
        [](auto in, auto grads, auto out) {
          detail::causal_attention_backward(typename X::space::stream{}, in, grads, out);
        },
        x, gradient);
  } else {
    detail::reject_causal_attention_backward<X, G>();
    return detail::placeholder<Rule, X, G>();
  }
}

}  // namespace ops

}  // namespace distx
