// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A program that owns MPI and passes a part of its ranks to distx: a simulation of heat in a rod on all ranks but the
// last, which is free for other work. distx duplicates the communicator that it is given, and never finalizes MPI.
//   mpirun -np 3 build/examples/host_program
#include <cmath>

#include <mpi.h>

#include <distx/distx.hpp>
#include <distx/mpi.hpp>

#include "common/print.hpp"
#include "common/run.hpp"

namespace {

/// One rank's part of the rod, with a halo cell at either end.
class Rod {
 public:
  Rod(distx::MpiCommunicator& comm, std::size_t cells) : comm_(comm), now_(cells + 2), next_(cells + 2) {
    if (comm.rank() == 0) now_[1] = 1000.0;  // all the heat is in the first cell
  }

  /// Explicit Euler for u_t = u_xx with dt = dx²/4; the ends of the rod are insulated.
  void step() {
    const int left = comm_.rank() - 1;
    const int right = comm_.rank() + 1;
    const std::size_t last = now_.size() - 2;
    now_.front() = now_[1];
    now_.back() = now_[last];
    if (left >= 0) distx::send_receive(comm_, now_[1], left, now_.front(), left);
    if (right < comm_.size()) distx::send_receive(comm_, now_[last], right, now_.back(), right);
    for (std::size_t i = 1; i <= last; ++i) next_[i] = now_[i] + 0.25 * (now_[i - 1] - 2 * now_[i] + now_[i + 1]);
    now_.swap(next_);
  }

  [[nodiscard]] double heat() const {
    double total = 0;
    for (std::size_t i = 1; i + 1 < now_.size(); ++i) total += now_[i];
    distx::all_reduce(comm_, total, distx::sum);
    return total;
  }

 private:
  distx::MpiCommunicator& comm_;
  std::vector<double> now_;
  std::vector<double> next_;
};

void simulate(MPI_Comm workers, std::size_t cells, int steps) {
  distx::MpiConnector connector(workers);  // a duplicate: `workers` stays as it is
  distx::MpiCommunicator comm(connector);
  Rod rod(comm, cells);
  for (int step = 0; step < steps; ++step) rod.step();
  const double heat = rod.heat();
  if (comm.rank() == 0) fmt::print("{} ranks, {} steps: the heat is {:.6f}\n", comm.size(), steps, heat);
  if (std::abs(heat - 1000.0) > 1e-6)
    throw distx::Error("heat is not conserved: " + std::to_string(heat) + " instead of 1000");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Simulates heat in a rod on all ranks but the last; start it with mpirun -np N, N >= 2", "host_program");
  std::size_t cells = 100;
  int steps = 1000;
  app.add_option("--cells", cells, "cells of the rod per rank")->check(CLI::Range(1, 1000000))->capture_default_str();
  app.add_option("--steps", steps, "number of time steps")->check(examples::whole_number())->capture_default_str();

  MPI_Init(&argc, &argv);
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm workers = MPI_COMM_NULL;
  const bool works = size == 1 || rank + 1 < size;
  MPI_Comm_split(MPI_COMM_WORLD, works ? 0 : MPI_UNDEFINED, rank, &workers);

  const int code = examples::run(app, argc, argv, [&] {
    if (works) simulate(workers, cells, steps);
  });
  if (workers != MPI_COMM_NULL) MPI_Comm_free(&workers);
  MPI_Finalize();
  return code;
}
