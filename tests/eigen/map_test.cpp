// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include "distx/distx.hpp"
#include "distx/eigen.hpp"

namespace {

struct Data;
using Matrix = distx::eigen::RowMajor<float>;

TEST_CASE("an Eigen matrix survives being distributed, mapped and gathered") {
  for (const int ranks : {1, 2, 3})
    distx::spawn(ranks, [](distx::ThreadConnector& connector) {
      distx::ThreadCommunicator comm(connector);
      const distx::Mesh<Data> mesh(comm, {comm.size()});
      Matrix all(5, 4);
      for (Eigen::Index i = 0; i < all.size(); ++i) all.data()[i] = static_cast<float>(i);
      auto x = distx::distribute<distx::Shard<0, Data>>(mesh, distx::eigen::tensor(all));
      const auto rows = static_cast<Eigen::Index>(x.local_extents()[0]);
      const auto first = static_cast<Eigen::Index>(x.offset()[0]);
      CHECK(distx::eigen::map(x) == all.middleRows(first, rows));
      distx::eigen::map(x) *= 2;
      const auto again = distx::redistribute<>(x);
      CHECK(distx::eigen::map(again) == 2 * all);
      CHECK(distx::eigen::map(again).data() == again.local().data());
      const auto whole = distx::gather(x, 0);
      if (comm.rank() == 0) CHECK(distx::eigen::map(whole) == 2 * all);
    });
}

TEST_CASE("tensors of rank 1 and 3 map to matrices") {
  std::vector<double> values(24, 1);
  const auto cube = distx::eigen::map(distx::TensorRef(values, {2, 3, 4}));
  CHECK(cube.rows() == 6);
  CHECK(cube.cols() == 4);
  const auto row = distx::eigen::map(distx::TensorRef(values, {24}));
  CHECK(row.rows() == 1);
  CHECK(row.sum() == 24);
}

}  // namespace
