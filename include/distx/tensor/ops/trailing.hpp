// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/ops/apply.hpp"
#include "distx/tensor/ops/rules.hpp"

// A tensor that is added to each of many, as a bias by head is to every token's: (batch, length, 3, heads, size) plus
// (3, heads, size).
namespace distx {

/// x (m…, n…) plus b (n…) gives (m…, n…).
struct AddTrailing {
  static constexpr std::string_view name = "add_trailing";
  static constexpr AxisPlace on(AxisPlace x, AxisPlace b) {
    const std::size_t m = x.dimensions - b.dimensions;
    if (x.is_replicated() && b.is_replicated()) return places::replicated;
    if (x.is_shard() && x.dim < m && b.is_replicated()) return places::shard(x.dim);
    if (x.is_shard() && x.dim >= m && b.is_shard(x.dim - m)) return places::shard(x.dim);
    if (x.is_sum() && b.is_sum()) return places::sum;
    return places::none;
  }
  template <std::size_t X, std::size_t B>
  static Extents<X> extents(const Extents<X>& x, const Extents<B>& b) {
    static_assert(B < X, "distx: add_trailing: the second tensor has fewer dimensions than the first");
    for (std::size_t d = 0; d < B; ++d)
      if (x[X - B + d] != b[d]) detail::extents_differ(name, x, b);
    return x;
  }
};

/// The sum of x (m…, n…) over all but the last `N` dimensions n: the gradient of what `add_trailing` adds.
template <std::size_t N>
struct SumLeading {
  static constexpr std::string_view name = "sum_leading";
  static constexpr AxisPlace on(AxisPlace x) {
    const std::size_t m = x.dimensions - N;
    if (x.is_replicated()) return places::replicated;
    if (x.is_shard() && x.dim < m) return places::sum;
    if (x.is_shard()) return places::shard(x.dim - m);
    if (x.is_sum()) return places::sum;
    return places::none;
  }
  template <std::size_t X>
  static Extents<N> extents(const Extents<X>& x) {
    Extents<N> last{};
    for (std::size_t d = 0; d < N; ++d) last[d] = x[X - N + d];
    return last;
  }
};

template <class X, class B>
  requires Operands<X, B>
[[nodiscard]] auto add_trailing(const X& x, const B& b) {
  return apply<AddTrailing>(x, b, [](auto each, auto added, auto out) {
    const std::size_t size = added.values().size();
    for (std::size_t i = 0; i < out.values().size(); i += size)
      for (std::size_t j = 0; j < size; ++j) out.data()[i + j] = each.data()[i + j] + added.data()[j];
  });
}
template <std::size_t N, class X>
  requires Operands<X>
[[nodiscard]] auto sum_leading(const X& x) {
  return apply<SumLeading<N>>(x, [](auto each, auto out) {
    fill(typename X::space::stream{}, out.values(), value_of<X>{});
    const std::size_t size = out.values().size();
    for (std::size_t i = 0; i < each.values().size(); i += size)
      for (std::size_t j = 0; j < size; ++j) out.data()[j] += each.data()[i + j];
  });
}

}  // namespace distx
