// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/rule.hpp"

// The rules of the operations: on one axis of the mesh, one line a case. docs/rules.md shows them as tables.
namespace distx {

namespace detail {

/// @throws MismatchError that names the operation and its operands' extents
template <std::size_t... Ranks>
[[noreturn]] void extents_differ(std::string_view operation, const Extents<Ranks>&... extents) {
  std::string words;
  ((words += (words.empty() ? "" : " and ") + words_of(extents)), ...);
  throw MismatchError("operands of " + words + " elements do not fit", {.operation = operation});
}

}  // namespace detail

/// Any function of each element: of a sum of terms it is not the sum of the terms' values.
struct Elementwise {
  static constexpr std::string_view name = "elementwise";
  static constexpr Place on(Place x) {
    if (x.is_replicated()) return places::replicated;
    if (x.is_shard()) return x;
    return places::none;
  }
  template <std::size_t Rank>
  static Extents<Rank> extents(const Extents<Rank>& x) {
    return x;
  }
};

/// A linear function of each element.
struct LinearElementwise : Elementwise {
  static constexpr std::string_view name = "linear elementwise";
  static constexpr Place on(Place x) {
    if (x.is_sum()) return places::sum;
    return Elementwise::on(x);
  }
};

/// The gradient of an elementwise function: of the operand any function, of the result's gradient a linear one.
struct ElementwiseBackward {
  static constexpr std::string_view name = "elementwise backward";
  static constexpr Place on(Place x, Place gradient) {
    if (x.is_replicated() && gradient.is_replicated()) return places::replicated;
    if (x.is_shard() && gradient.is_shard(x.dim)) return x;
    if (x.is_replicated() && gradient.is_sum()) return places::sum;
    return places::none;
  }
  template <std::size_t Rank>
  static Extents<Rank> extents(const Extents<Rank>& x, const Extents<Rank>& gradient) {
    if (x != gradient) detail::extents_differ(name, x, gradient);
    return x;
  }
};

/// x (…, m, k) times w (k, n) gives (…, m, n): linear in either.
struct Matmul {
  static constexpr std::string_view name = "matmul";
  static constexpr Place on(Place x, Place w) {
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

}  // namespace distx
