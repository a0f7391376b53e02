// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A minimal program of a project that uses distx without MPI or another backend.
#include <distx/distx.hpp>

#include <iostream>
#include <vector>

int main(int argc, char** argv) {
  auto connector = distx::connect(argc, argv);
  distx::SerialCommunicator comm(connector);
  std::vector<float> x(4, 1.0f);
  distx::all_reduce(comm, x, distx::sum);
  std::cout << "rank " << comm.rank() << " of " << comm.size() << ": " << x[0] << '\n';
  return x == std::vector<float>(4, static_cast<float>(comm.size())) ? 0 : 1;
}
