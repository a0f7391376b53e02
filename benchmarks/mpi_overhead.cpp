// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The time of an all-reduce through distx relative to MPI's own, in alternating batches, so that load affects both
// alike.
#include <algorithm>
#include <iostream>
#include <vector>

#include <distx/distx.hpp>
#include <distx/mpi.hpp>

#include "timing/samples.hpp"

namespace {

constexpr int calls = 2000;  // in a batch
constexpr int batches = 41;  // of each kind

template <class F>
double seconds(MPI_Comm comm, F&& call) {
  MPI_Barrier(comm);
  const auto begin = timing::clock::now();
  for (int i = 0; i < calls; ++i) call();
  return timing::since(begin);
}

double least(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }

void compare(distx::MpiCommunicator& direct, distx::MpiCommunicator& patient, std::size_t bytes) {
  std::vector<float> send(bytes / sizeof(float), 1.0f);
  std::vector<float> receive(send.size());
  const MPI_Comm comm = direct.native_handle();
  const auto raw = [&] {
    MPI_Allreduce(send.data(), receive.data(), static_cast<int>(send.size()), MPI_FLOAT, MPI_SUM, comm);
  };
  const auto wrapped = [&] { distx::all_reduce(direct, send, receive, distx::sum); };
  const auto watched = [&] { distx::all_reduce(patient, send, receive, distx::sum); };
  for (int warm = 0; warm < 3; ++warm) seconds(comm, raw), seconds(comm, wrapped), seconds(comm, watched);
  std::vector<double> raws, wrappeds, straight, guarded;
  for (int batch = 0; batch < batches; ++batch) {
    // The order alternates, so that neither always finds the caches warm.
    const double first = batch % 2 == 0 ? seconds(comm, raw) : seconds(comm, wrapped);
    const double second = batch % 2 == 0 ? seconds(comm, wrapped) : seconds(comm, raw);
    const double plain = batch % 2 == 0 ? first : second;
    raws.push_back(plain);
    wrappeds.push_back(first + second - plain);
    straight.push_back((first + second - plain) / plain);
    guarded.push_back(seconds(comm, watched) / plain);
  }
  if (direct.rank() != 0) return;
  const double unit = 1e6 / calls;
  std::cout << bytes << " B, MPI itself " << timing::median(raws) * unit << " us a call, at best " << least(raws) * unit
            << ":\n  median of ratios: without a deadline and comparison " << timing::median(straight) << ", with both "
            << timing::median(guarded)
            // On a machine that does other things too, most batches of one kind may have lost a time slice to them.
            << "\n  ratio of the best batches: without them " << least(wrappeds) / least(raws) << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  try {
    auto connector = distx::connect(argc, argv);
    distx::MpiCommunicator direct(connector, {.deadline = distx::no_timeout, .check = distx::Check::off});
    distx::MpiCommunicator patient(connector);
    for (const std::size_t bytes : {8u, 256u, 1024u}) compare(direct, patient, bytes);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
