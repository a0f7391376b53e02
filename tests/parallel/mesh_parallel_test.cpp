// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "mesh_model.hpp"

TEST_CASE("weights spread over a mesh are trained as one process would, at every stage") {
  using distx::Host;
  const distx::DataParallelOptions options{.clip_norm = 0.5};
  const mesh_model::Whole expected(options);
  REQUIRE(expected.norms.front() > 0.5);  // so that it is clipped, and the norm matters
  for (const auto shape : {std::array{1, 1}, {2, 1}, {1, 2}, {2, 2}, {1, 3}, {2, 3}, {1, 7}}) {
    INFO(shape[0], " x ", shape[1]);
    toy::on_ranks(shape[0] * shape[1], [&](distx::ThreadCommunicator& comm) {
      const mesh_model::Grid mesh(comm, shape);
      mesh_model::train<Host, 0>(mesh, options, expected);
      mesh_model::train<Host, 1>(mesh, options, expected);
      mesh_model::train<Host, 3>(mesh, options, expected);
    });
  }
}
