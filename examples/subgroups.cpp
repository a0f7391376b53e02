// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Four ranks as a 2 × 2 grid: sums over its rows and over its columns, in two groupings of one communicator.
//   mpirun -np 4 build/examples/subgroups
#include <distx/distx.hpp>
#include <distx/mpi.hpp>

#include "common/print.hpp"
#include "common/run.hpp"

int main(int argc, char** argv) {
  CLI::App app("Sums over the rows and the columns of a 2 x 2 grid of ranks; start it with mpirun -np 4", "subgroups");

  return examples::run(app, argc, argv, [&](distx::AnyConnector& connector) {
    examples::on_every_rank(connector, [&] {
      if (connector.size() != 4)
        throw distx::ConnectError("subgroups runs on 4 ranks, not " + std::to_string(connector.size()) +
                                  ": start it with mpirun -np 4");
    });
    auto world = distx::MpiCommunicator(connector);
    auto row = distx::groups(world, {{0, 1}, {2, 3}});
    auto column = distx::groups(world, {{0, 2}, {1, 3}});

    const int mine = 1 << world.rank();  // 1, 2, 4, 8: the sum shows which ranks took part
    int over_row = 0;
    int over_column = 0;
    distx::all_reduce(row, mine, over_row, distx::sum);
    distx::all_reduce(column, mine, over_column, distx::sum);
    examples::print_in_order(world, fmt::format("rank {} has {}: row {} gives {}, column {} gives {}", world.rank(),
                                                mine, world.rank() / 2, over_row, world.rank() % 2, over_column));
  });
}
