// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Counts the functions and headers between a program's all_reduce and MPI, in a build without optimization.
#include <optional>
#include <vector>

#include <distx/comm.hpp>
#include <distx/mpi.hpp>

#include "stack_walk.hpp"

namespace {

std::optional<test::StackWalk> walk;  // to MPI's first function since it was emptied

void note() {
  if (!walk) walk = test::walk_stack();
}

template <class C>
test::StackWalk walk_of_all_reduce(C& comm, std::vector<float>& values) {
  walk.reset();
  distx::all_reduce(comm, values, distx::sum);
  return walk.value_or(test::StackWalk{});
}

}  // namespace

// Replace MPI's functions.
extern "C" int MPI_Allreduce(const void* send, void* receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  walk = test::walk_stack();
  return PMPI_Allreduce(send, receive, count, type, op, comm);
}
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  note();
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}
extern "C" int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  note();
  return PMPI_Irecv(data, count, type, from, tag, comm, request);
}

int main(int argc, char** argv) {
  auto connector = distx::connect(argc, argv);
  distx::MpiCommunicator comm(connector);
  // Under a deadline another thread makes them.
  distx::MpiCommunicator vendor(connector,
                                {.deadline = distx::no_timeout, .collectives = distx::MpiCollectives::vendor});
  distx::AnyCommunicator<> any(vendor.share());
  std::vector<float> few(4, 1.0f), many(1 << 16, 1.0f);  // the latter are too large to be sent with the comparison
  for (const auto values : {&few, &many}) distx::all_reduce(comm, *values, distx::sum);  // all memory is there
  const auto small = walk_of_all_reduce(comm, few), large = walk_of_all_reduce(comm, many);
  const auto direct = walk_of_all_reduce(vendor, many), through_any = walk_of_all_reduce(any, many);
  if (connector.rank() != 0) return 0;
  bool passed = is_within(small, "small operands, to MPI_Isend", 9, 10);
  passed = is_within(large, "large operands, to MPI_Isend", 9, 10) && passed;
  passed = is_within(direct, "MPI's collectives, to MPI_Allreduce", 6, 10) && passed;
  passed = is_within(through_any, "the same through AnyCommunicator", 8, 10) && passed;
  return passed ? 0 : 1;
}
