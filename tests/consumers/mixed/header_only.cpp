// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A file of a program in the header-only form of distx; compiled.cpp is in the other form.
#include <distx/comm.hpp>
#include <distx/threads.hpp>

#include <iostream>

float sum_in_compiled_form(float x);

float sum_in_header_only_form(float x) {
  distx::SelfConnector self;
  distx::SerialCommunicator comm(self);
  distx::all_reduce(comm, x, distx::sum);
  return x;
}

#ifdef PASS_AN_OBJECT
int rank_of(const distx::SerialCommunicator& comm);
#else
int rank_of(const distx::SerialCommunicator& comm) { return comm.rank(); }
#endif

int main() {
  distx::SelfConnector self;
  const distx::SerialCommunicator comm(self);
  std::cout << "rank " << rank_of(comm) << ": " << sum_in_header_only_form(2) << " " << sum_in_compiled_form(3) << '\n';
}
