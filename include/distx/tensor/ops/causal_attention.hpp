// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>
#include <vector>

#include "distx/memory/sums.hpp"
#include "distx/tensor/ops/apply.hpp"
#include "distx/tensor/ops/rules.hpp"

namespace distx::inline DISTX_ABI {

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

template <std::size_t Bytes, class T>
double dot(const T* x, const T* y, std::size_t n) {
  return add_up<Bytes>(n, [=]<class V>(std::size_t i, V) { return wide<V>(x + i) * wide<V>(y + i); });
}
template <std::size_t Bytes, class T>
void add_multiple(double* to, double factor, const T* from, std::size_t n) {
  for_each_wide<Bytes>(
      n, [=]<class V>(std::size_t i, V) { narrow_to(to + i, wide<V>(to + i) + V(factor) * wide<V>(from + i)); });
}
template <std::size_t Bytes, class T>
void round_row(const double* from, T* to, std::size_t n) {
  for_each_wide<Bytes>(n, [=]<class V>(std::size_t i, V) { narrow_to(to + i, wide<V>(from + i)); });
}

/// Sets the scores of a token with the first `n` others, and returns the largest one.
template <std::size_t Bytes, class T>
double scores(const T* query, const T* keys, std::size_t stride, std::size_t n, std::size_t size, double* to) {
  const double root = 1 / std::sqrt(static_cast<double>(size));
  double largest = -std::numeric_limits<double>::infinity();
  for (std::size_t s = 0; s < n; ++s) {
    to[s] = root * dot<Bytes>(query, keys + s * stride, size);
    largest = std::max(largest, to[s]);
  }
  return largest;
}
/// The attention weights of a token: the softmax of its scores with itself and each earlier token.
template <std::size_t Bytes, class T>
void attend(const T* query, const T* keys, std::size_t stride, std::size_t token, std::size_t size, double* weights) {
  const double largest = scores<Bytes>(query, keys, stride, token + 1, size, weights);
  const double share = 1 / add_up<Bytes>(token + 1, [=]<class V>(std::size_t s, V) {
                         const V each = exponential<T>(wide<V>(weights + s) - V(largest));
                         narrow_to(weights + s, each);
                         return each;
                       });
  for (std::size_t s = 0; s <= token; ++s) weights[s] *= share;
}

/// One head: rows of q are queries, keys and values, `row` elements each.
DISTX_KERNELS_BEGIN
struct AttentionHead {
  template <std::size_t Bytes, class T>
  static void run(const T* q, T* out, std::size_t length, std::size_t size, std::size_t row, double* weights,
                  double* result) {
    for (std::size_t t = 0; t < length; ++t) {
      attend<Bytes>(q + t * 3 * row, q + row, 3 * row, t, size, weights);
      std::fill_n(result, size, 0);
      for (std::size_t s = 0; s <= t; ++s) add_multiple<Bytes>(result, weights[s], q + 2 * row + s * 3 * row, size);
      round_row<Bytes>(result, out + t * row, size);
    }
  }
};
struct AttentionHeadBackward {
  template <std::size_t Bytes, class T>
  static void run(const T* q, const T* gradient, T* out, std::size_t length, std::size_t size, std::size_t row,
                  double* weights, double* grads, double* gradients) {
    const double root = 1 / std::sqrt(static_cast<double>(size));
    double *const dq = gradients, *const dk = dq + length * size, *const dv = dk + length * size;
    std::fill_n(gradients, 3 * length * size, 0);
    for (std::size_t t = 0; t < length; ++t) {
      attend<Bytes>(q + t * 3 * row, q + row, 3 * row, t, size, weights);
      const T* const g = gradient + t * row;
      for (std::size_t s = 0; s <= t; ++s) {
        add_multiple<Bytes>(dv + s * size, weights[s], g, size);
        grads[s] = dot<Bytes>(g, q + 2 * row + s * 3 * row, size);
      }
      const double mean = dot<Bytes>(static_cast<const double*>(weights), static_cast<const double*>(grads), t + 1);
      for (std::size_t s = 0; s <= t; ++s) {
        const double score = root * weights[s] * (grads[s] - mean);
        add_multiple<Bytes>(dq + t * size, score, q + row + s * 3 * row, size);
        add_multiple<Bytes>(dk + s * size, score, q + t * 3 * row, size);
      }
    }
    for (std::size_t t = 0; t < 3 * length; ++t)
      round_row<Bytes>(gradients + t * size, out + (t % length * 3 + t / length) * row, size);
  }
};

/// Calls f(offset of the queries, offset of the outputs) for each head of each batch item.
template <class F>
void for_each_head(const Extents<5>& x, F&& f) {
  const std::size_t row = x[3] * x[4];
  for (std::size_t batch = 0; batch < x[0]; ++batch)
    for (std::size_t head = 0; head < x[3]; ++head)
      f(batch * x[1] * 3 * row + head * x[4], batch * x[1] * row + head * x[4]);
}
DISTX_KERNELS_END

/// @name Kernels of the host's memory
/// @{
template <class T>
void causal_attention(HostStream, const TensorRef<const T, 5>& x, const TensorRef<T, 4>& out) {
  const std::size_t length = x.extent(1), size = x.extent(4), row = x.extent(3) * size;
  std::vector<double> weights(length), result(size);
  for_each_head(x.extents(), [&](std::size_t from, std::size_t to) {
    run_on_lanes<AttentionHead>(lane_bytes(), x.data() + from, out.data() + to, length, size, row, weights.data(),
                                result.data());
  });
}
template <class T>
void causal_attention_backward(HostStream, const TensorRef<const T, 5>& x, const TensorRef<const T, 4>& gradient,
                               const TensorRef<T, 5>& out) {
  const std::size_t length = x.extent(1), size = x.extent(4), row = x.extent(3) * size;
  std::vector<double> weights(length), grads(length), gradients(3 * length * size);
  for_each_head(x.extents(), [&](std::size_t from, std::size_t to) {
    run_on_lanes<AttentionHeadBackward>(lane_bytes(), x.data() + from, gradient.data() + to, out.data() + from, length,
                                        size, row, weights.data(), grads.data(), gradients.data());
  });
}
/// @}

/// The attention by the memory space's own kernels.
template <class Stream, class In, class Out>
void attend_causally(Stream stream, const In& x, const Out& out) {
  constexpr bool can = requires { causal_attention(stream, x, out); };
  static_assert(can,
                "distx: causal_attention: no included header has kernels for these elements in this memory space; "
                "include one that does (for GPUs distx/cuda.hpp)");
  if constexpr (can) causal_attention(stream, x, out);
}
template <class Stream, class In, class Gradient, class Out>
void attend_causally_backward(Stream stream, const In& x, const Gradient& gradient, const Out& out) {
  constexpr bool can = requires { causal_attention_backward(stream, x, gradient, out); };
  static_assert(can,
                "distx: causal_attention_backward: no included header has kernels for these elements in this memory "
                "space; include one that does (for GPUs distx/cuda.hpp)");
  if constexpr (can) causal_attention_backward(stream, x, gradient, out);
}

template <class Missing>
consteval void check_causal_attention() {
  constexpr bool partial = Missing::operands[0].is_partial();
  static_assert(supported_unless<Missing, partial>,
                "distx: causal_attention: the operand is Partial and attention is not linear; redistribute it first");
  static_assert(supported_unless<Missing, !partial>,
                "distx: causal_attention: the operand is sharded in its length, its size or its queries, keys and "
                "values; redistribute it to Replicated or to a Shard of the batch or the heads");
}

}  // namespace detail

namespace ops {

/// Returns causal multi-head scaled dot-product attention (Vaswani et al., 2017, arXiv 1706.03762): for each token and
/// head, the mean of the values of the token and all earlier ones, weighted by softmax(query · key / sqrt(size)).
///
/// `x` holds queries, keys and values, (batch, length, 3, heads, size); the result is (batch, length, heads, size). On
/// each axis `x` is replicated or sharded in the batch (dimension 0) or the heads (3), and so is the result (0 or 2).
/// Local, stream-ordered, for float and double. A result does not depend on later tokens, even if they are not finite.
/// Memory is linear in the length: weights exist for one token at a time, in GPU memory for one tile of tokens.
/// @throws InvalidArgument if the third extent is not 3
template <DistributedTensor X>
[[nodiscard]] auto causal_attention(const X& x, std::source_location location = std::source_location::current()) {
  using Rule = rules::CausalAttention;
  detail::check_causal_attention<detail::missing_case<Rule, X>>();
  return detail::applied<Rule>(
      {"causal_attention", location}, [](auto stream, auto in, auto out) { detail::attend_causally(stream, in, out); },
      x);
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
  static_assert(detail::is_supported<detail::missing_case<Rule, X, G>>,
                "distx: causal_attention_backward: the gradient is not sharded as the operand, by batch or by head, or "
                "the operand is Partial; redistribute it");
  return detail::applied<Rule>(
      {"causal_attention_backward", location},
      [](auto stream, auto in, auto grads, auto out) { detail::attend_causally_backward(stream, in, grads, out); }, x,
      gradient);
}

}  // namespace ops

}  // namespace distx::inline DISTX_ABI
