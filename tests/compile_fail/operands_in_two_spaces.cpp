// expect: the operands of this operation are in different memory spaces; copy one by to_space<Space>(x)
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/tensor/ops/embedding.hpp"

/// Stands for a GPU's memory.
struct Elsewhere {
  using stream = distx::HostStream;
  using event = distx::HostEvent;
  static constexpr std::string_view name = "elsewhere";
  static constexpr bool host_accessible = false;
};
struct Data;
using Mesh = distx::Mesh<Data>;
template <class T, std::size_t Rank, class Space>
using Whole = distx::DistTensorRef<const T, Rank, Mesh, distx::Layout<>, Space>;

#ifndef DISTX_POSITIVE
using There = Elsewhere;
#else
using There = distx::Host;
#endif

auto rows(const Whole<int, 1, distx::Host>& ids, const Whole<float, 2, There>& table) {
  return distx::ops::embedding(ids, table);
}
