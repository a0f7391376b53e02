// expect: distx: apply: the rule does not support these placements
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/tensor/ops.hpp"
#include "distx/tensor/redistribute.hpp"

struct Model {};
using Least = distx::DistTensor<float, 2, distx::Mesh<Model>, distx::Layout<distx::Partial<Model, distx::Min>>>;

struct Doubled {
  static constexpr std::string_view name = "doubled";
  static constexpr distx::rules::AxisPlacement on(distx::rules::AxisPlacement x) { return x; }
  static distx::Extents<2> extents(const distx::Extents<2>& x) { return x; }
};

auto doubled(const Least& x) {
  const auto kernel = [](auto in, auto out) {
    for (std::size_t i = 0; i < out.values().size(); ++i) out.values()[i] = 2 * in.values()[i];
  };
#ifndef DISTX_POSITIVE
  return distx::rules::apply<Doubled>(x, kernel);
#else
  return distx::rules::apply<Doubled>(distx::redistribute<>(x), kernel);
#endif
}
