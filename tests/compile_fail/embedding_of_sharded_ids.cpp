// expect: distx: embedding: one axis shards the ids, and the table is sharded or Partial there
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/tensor/ops.hpp"
#include "distx/tensor/redistribute.hpp"

struct Model {};
template <std::size_t Rank, class... Ps>
using Tensor = distx::DistTensor<float, Rank, distx::Mesh<Model>, distx::Layout<Ps...>>;

using Ids = distx::DistTensor<int, 1, distx::Mesh<Model>, distx::Layout<distx::Shard<0, Model>>>;

auto rows(const Ids& ids, const Tensor<2, distx::Shard<0, Model>>& table) {
#ifndef DISTX_POSITIVE
  return distx::ops::embedding(ids, table);
#else
  return distx::ops::embedding(distx::redistribute<>(ids), table);
#endif
}
