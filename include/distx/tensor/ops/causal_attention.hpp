// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>
#include <vector>

#include "distx/tensor/ops/apply.hpp"
#include "distx/tensor/ops/rules.hpp"

namespace distx {

/// Queries, keys and values (batch, length, 3, heads, size) give (batch, length, heads, size): by batch and by head.
struct CausalAttention {
  static constexpr std::string_view name = "causal_attention";
  static constexpr AxisPlace on(AxisPlace x) {
    if (x.is_replicated()) return places::replicated;
    if (x.is_shard(0)) return places::shard(0);
    if (x.is_shard(3)) return places::shard(2);
    return places::none;
  }
  static Extents<4> extents(const Extents<5>& x) {
    if (x[2] != 3) detail::extents_differ(name, x);
    return {x[0], x[1], x[3], x[4]};
  }
};

/// The gradient of queries, keys and values, from them and that of the result.
struct CausalAttentionBackward {
  static constexpr std::string_view name = "causal_attention_backward";
  static constexpr AxisPlace on(AxisPlace x, AxisPlace gradient) {
    if (x.is_replicated() && gradient.is_replicated()) return places::replicated;
    if (x.is_shard(0) && gradient.is_shard(0)) return places::shard(0);
    if (x.is_shard(3) && gradient.is_shard(2)) return places::shard(3);
    if (x.is_replicated() && gradient.is_sum()) return places::sum;
    return places::none;
  }
  static Extents<5> extents(const Extents<5>& x, const Extents<4>& gradient) {
    if (CausalAttention::extents(x) != gradient) detail::extents_differ(name, x, gradient);
    return x;
  }
};

namespace detail {

template <class T>
T dot(const T* x, const T* y, std::size_t n) {
  T sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}
template <class T>
void add_multiple(T* to, T factor, const T* from, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

/// What a token attends to: its share of itself and of each token before it.
template <class T>
void attend(const T* query, const T* keys, std::size_t stride, std::size_t token, std::size_t size, T* share) {
  const T root = 1 / std::sqrt(static_cast<T>(size));
  T largest = -std::numeric_limits<T>::infinity(), total = 0;
  for (std::size_t s = 0; s <= token; ++s) {
    share[s] = root * dot(query, keys + s * stride, size);
    largest = std::max(largest, share[s]);
  }
  for (std::size_t s = 0; s <= token; ++s) total += share[s] = std::exp(share[s] - largest);
  for (std::size_t s = 0; s <= token; ++s) share[s] /= total;
}

/// Calls f(first number of the head's queries, of its outputs, head) by batch and head.
template <class F>
void for_each_head(const Extents<5>& x, F&& f) {
  const std::size_t row = x[3] * x[4];
  for (std::size_t batch = 0; batch < x[0]; ++batch)
    for (std::size_t head = 0; head < x[3]; ++head)
      f(batch * x[1] * 3 * row + head * x[4], batch * x[1] * row + head * x[4]);
}

/// @name Operations of the host's memory
/// @{
template <class T>
void causal_attention(HostStream, const TensorRef<const T, 5>& x, const TensorRef<T, 4>& out) {
  const std::size_t length = x.extent(1), size = x.extent(4), row = x.extent(3) * size;
  std::vector<T> share(length);
  for_each_head(x.extents(), [&](std::size_t from, std::size_t to) {
    const T* const q = x.data() + from;
    for (std::size_t t = 0; t < length; ++t) {
      attend(q + t * 3 * row, q + row, 3 * row, t, size, share.data());
      T* const result = out.data() + to + t * row;
      std::fill_n(result, size, T{});
      for (std::size_t s = 0; s <= t; ++s) add_multiple(result, share[s], q + 2 * row + s * 3 * row, size);
    }
  });
}
template <class T>
void causal_attention_backward(HostStream stream, const TensorRef<const T, 5>& x, const TensorRef<const T, 4>& gradient,
                               const TensorRef<T, 5>& out) {
  const std::size_t length = x.extent(1), size = x.extent(4), row = x.extent(3) * size;
  const T root = 1 / std::sqrt(static_cast<T>(size));
  fill(stream, out.values(), T{});
  std::vector<T> share(length), slope(length);
  for_each_head(x.extents(), [&](std::size_t from, std::size_t to) {
    const T* const q = x.data() + from;
    T* const dq = out.data() + from;
    for (std::size_t t = 0; t < length; ++t) {
      attend(q + t * 3 * row, q + row, 3 * row, t, size, share.data());
      const T* const g = gradient.data() + to + t * row;
      T mean = 0;
      for (std::size_t s = 0; s <= t; ++s) {
        const std::size_t value = 2 * row + s * 3 * row;
        add_multiple(dq + value, share[s], g, size);
        mean += share[s] * (slope[s] = dot(g, q + value, size));
      }
      for (std::size_t s = 0; s <= t; ++s) {
        const T score = root * share[s] * (slope[s] - mean);
        const std::size_t key = row + s * 3 * row;
        add_multiple(dq + t * 3 * row, score, q + key, size);
        add_multiple(dq + key, score, q + t * 3 * row, size);
      }
    }
  });
}
/// @}

}  // namespace detail

/// Each token's weighted mean over itself and those before it, by several heads (Vaswani et al., 2017, arXiv
/// 1706.03762).
template <class X>
  requires Operands<X>
[[nodiscard]] auto causal_attention(const X& x) {
  return apply<CausalAttention>(
      x, [](auto in, auto out) { detail::causal_attention(typename X::space::stream{}, in, out); });
}
/// Computes what each token attends to again.
template <class X, class G>
  requires Operands<X, G>
[[nodiscard]] auto causal_attention_backward(const X& x, const G& gradient) {
  return apply<CausalAttentionBackward>(x, gradient, [](auto in, auto slope, auto out) {
    detail::causal_attention_backward(typename X::space::stream{}, in, slope, out);
  });
}

}  // namespace distx
