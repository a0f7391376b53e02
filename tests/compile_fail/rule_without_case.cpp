// expect: distx: apply: the rule does not support these placements
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/tensor/ops.hpp"
#include "distx/tensor/redistribute.hpp"

struct Model {};
template <std::size_t Rank, class... Ps>
using Tensor = distx::DistTensor<float, Rank, distx::Mesh<Model>, distx::Layout<Ps...>>;

struct Doubled {
  static constexpr std::string_view name = "doubled";
  static constexpr distx::rules::AxisPlacement on(distx::rules::AxisPlacement x) { return x.is_replicated() ? x : distx::rules::unsupported; }
  static distx::Extents<2> extents(const distx::Extents<2>& x) { return x; }
};

auto doubled(const Tensor<2, distx::Shard<0, Model>>& x) {
  const auto kernel = [](auto in, auto out) {
    for (std::size_t i = 0; i < out.values().size(); ++i) out.values()[i] = 2 * in.values()[i];
  };
#ifndef DISTX_POSITIVE
  return distx::rules::apply<Doubled>(x, kernel);
#else
  return distx::rules::apply<Doubled>(distx::redistribute<>(x), kernel);
#endif
}
