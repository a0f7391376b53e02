// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Counts the functions between a program's all_reduce and MPI_Allreduce, in a build without optimization.
#include <execinfo.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include <distx/comm.hpp>
#include <distx/mpi.hpp>

namespace {

int frames = 0;

}  // namespace

// Replaces MPI's function and records its stack depth.
extern "C" int MPI_Allreduce(const void* send, void* receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  void* addresses[64];
  const int depth = backtrace(addresses, 64);
  char** const names = backtrace_symbols(addresses, depth);
  frames = 0;
  for (int i = 1; i < depth && std::string_view(names[i]).find("distx") != std::string_view::npos; ++i) ++frames;
  std::free(names);
  return PMPI_Allreduce(send, receive, count, type, op, comm);
}

int main(int argc, char** argv) {
  auto connector = distx::connect(argc, argv);
  distx::MpiCommunicator comm(connector, {.collectives = distx::MpiCollectives::vendor});
  distx::AnyCommunicator<> any(comm.share());
  std::vector<float> values(1 << 16, 1.0f);  // too large to be sent with the comparison
  distx::all_reduce(comm, values, distx::sum);
  const int direct = frames;
  distx::all_reduce(any, values, distx::sum);
  const int through_any = frames;
  if (comm.rank() == 0) std::printf("%d frames to MPI_Allreduce, %d through AnyCommunicator\n", direct, through_any);
  const bool counted = direct > 0 && through_any > 0;
  return counted && direct <= 6 && through_any <= 8 ? 0 : 1;
}
