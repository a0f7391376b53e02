// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Every rank fills a tensor with its rank plus one; after the all-reduce, every rank holds the sum.
//   mpirun -np 4 build/examples/all_reduce
#include <distx/distx.hpp>
#include <distx/mpi.hpp>

#include "common/print.hpp"
#include "common/run.hpp"

int main(int argc, char** argv) {
  CLI::App app("Sums a tensor over all ranks; start it with mpirun -np N", "all_reduce");
  std::size_t elements = 4;
  app.add_option("--elements", elements, "number of floats in the tensor")
      ->check(examples::whole_number())
      ->capture_default_str();

  return examples::run(app, argc, argv, [&](distx::AnyConnector& connector) {
    auto comm = distx::MpiCommunicator(connector);

    std::vector<float> tensor(elements, static_cast<float>(comm.rank() + 1));
    examples::print_in_order(comm, fmt::format("rank {} before: {}", comm.rank(), tensor));
    distx::all_reduce(comm, tensor, distx::sum);
    examples::print_in_order(comm, fmt::format("rank {} after:  {}", comm.rank(), tensor));
  });
}
