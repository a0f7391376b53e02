// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Rank 0 sends a tensor to rank 1, and both print it.
//   mpirun -np 2 build/examples/send_recv
#include <numeric>

#include <distx/distx.hpp>
#include <distx/mpi.hpp>

#include "common/print.hpp"
#include "common/run.hpp"

int main(int argc, char** argv) {
  CLI::App app("Sends a tensor from rank 0 to rank 1; start it with mpirun -np 2", "send_recv");
  std::size_t elements = 8;
  app.add_option("--elements", elements, "number of floats in the tensor")
      ->check(examples::whole_number())
      ->capture_default_str();

  return examples::run(app, argc, argv, [&](distx::AnyConnector& connector) {
    examples::on_every_rank(connector, [&] {
      if (connector.size() != 2)
        throw distx::ConnectError("send_recv runs on 2 ranks, not " + std::to_string(connector.size()) +
                                  ": start it with mpirun -np 2");
    });
    auto comm = distx::MpiCommunicator(connector);

    std::vector<float> tensor(elements);
    if (comm.rank() == 0) {
      std::iota(tensor.begin(), tensor.end(), 0.0f);
      distx::send(comm, tensor, 1);
    } else {
      distx::receive(comm, tensor, 0);
    }
    examples::print_in_order(
        comm, fmt::format("rank {} {}: {}", comm.rank(), comm.rank() == 0 ? "sent" : "received", tensor));
  });
}
