// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Two ranks, one tensor: rank 0 sends it to rank 1, and both print it.
//   mpirun -np 2 build/examples/send_recv
#include <numeric>

#include <distx/distx.hpp>
#include <distx/mpi.hpp>

#include "common/print.hpp"
#include "common/run.hpp"

int main(int argc, char** argv) {
  CLI::App app("Sends a tensor from rank 0 to rank 1; start it with mpirun -np 2", "send_recv");
  std::size_t elements = 8;
  app.add_option("--elements", elements, "how many floats the tensor has")->capture_default_str();

  return examples::run(app, argc, argv, [&] {
    auto connector = distx::connect(argc, argv);
    if (connector.size() != 2)
      throw distx::ConnectError("send_recv needs two ranks, not " + std::to_string(connector.size()) +
                                ": mpirun -np 2 send_recv");
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
