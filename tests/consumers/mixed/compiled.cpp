// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A file of a program in the compiled form of distx; header_only.cpp is in the other form.
#include <distx/comm.hpp>
#include <distx/threads.hpp>

int rank_of(const distx::SerialCommunicator& comm) { return comm.rank(); }

float sum_in_compiled_form(float x) {
  distx::SelfConnector self;
  distx::SerialCommunicator comm(self);
  distx::all_reduce(comm, x, distx::sum);
  return x;
}
