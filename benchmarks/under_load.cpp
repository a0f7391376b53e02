// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The time of an all-reduce on shared memory and of MPI's own, in alternating batches on the same ranks, so that load
// affects both alike. benchmarks/under_load.py runs it for several numbers of ranks and of busy loops.
//
//   under_load [SECONDS]    (of each row; default: 3)
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <stdexcept>
#include <vector>

#include <distx/distx.hpp>
#include <distx/mpi.hpp>
#include <distx/shm.hpp>

#include "timing/samples.hpp"

namespace {

constexpr double shortest_batch = 0.04;  // several time slices of the system's scheduler
constexpr std::size_t least_batches = 5;

/// A call, and the times of its batches.
template <class F>
class Subject {
 public:
  explicit Subject(F call) : call_(std::move(call)) {}

  /// Returns the number of calls that take long enough even if the ranks lose no time slice, the same on every rank.
  [[nodiscard]] int calls_in_a_batch() {
    int calls = 1;
    while (std::min({seconds(calls), seconds(calls), seconds(calls)}) < shortest_batch) calls *= 2;
    return calls;
  }
  /// Returns the seconds of the batch on the slowest rank.
  double batch(int calls) {
    const double taken = seconds(calls);
    times_.push_back(taken / calls);
    return taken;
  }
  /// Returns the median time of a call, in seconds.
  [[nodiscard]] double time() const { return timing::median(times_); }
  [[nodiscard]] std::size_t batches() const { return times_.size(); }

 private:
  [[nodiscard]] double seconds(int calls) {
    MPI_Barrier(MPI_COMM_WORLD);
    const auto begin = timing::clock::now();
    for (int i = 0; i < calls; ++i) call_();
    double slowest = timing::since(begin);
    MPI_Allreduce(MPI_IN_PLACE, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
  }

  F call_;
  std::vector<double> times_;
};

/// Prints a row: bytes, memory, microseconds of a call on shared memory and on MPI, their ratio, batches of each.
void compare(distx::ShmCommunicator& comm, const char* memory, distx::Span<float> ours, double least_seconds) {
  std::vector<float> theirs(ours.size());
  const auto on_distx = [&] { distx::all_reduce(comm, ours, distx::sum); };
  const auto on_mpi = [&] {
    MPI_Allreduce(MPI_IN_PLACE, theirs.data(), static_cast<int>(theirs.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  };
  for (const std::span<float> values : {std::span(ours.data(), ours.size()), std::span(theirs)})
    std::ranges::fill(values, 1.0f);
  on_distx();
  on_mpi();
  for (const std::span<float> values : {std::span(ours.data(), ours.size()), std::span(theirs)}) {
    const auto is_wrong = [&](float value) { return value != static_cast<float>(comm.size()); };
    if (std::ranges::any_of(values, is_wrong)) throw std::runtime_error("a sum is wrong");
    std::ranges::fill(values, 0.0f);  // which remains 0
  }
  Subject distx_subject(on_distx);
  Subject mpi_subject(on_mpi);
  const int calls = std::max(distx_subject.calls_in_a_batch(), mpi_subject.calls_in_a_batch());
  for (double spent = 0; spent < least_seconds || mpi_subject.batches() < least_batches;) {
    const bool first = mpi_subject.batches() % 2 == 0;  // the order alternates
    if (first) spent += distx_subject.batch(calls);
    spent += mpi_subject.batch(calls);
    if (!first) spent += distx_subject.batch(calls);
  }
  if (comm.rank() != 0) return;
  std::printf("%zu %s %.3f %.3f %.3f %zu\n", ours.size_bytes(), memory, 1e6 * distx_subject.time(),
              1e6 * mpi_subject.time(), distx_subject.time() / mpi_subject.time(), mpi_subject.batches());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    distx::MpiConnector connector(argc, argv);
    const double seconds = argc > 1 ? std::strtod(argv[1], nullptr) : 3;
    distx::ShmCommunicator comm(connector);
    constexpr std::size_t large = (std::size_t{1} << 20) / sizeof(float);
    auto memory = comm.allocate<float>(large);
    std::vector<float> user(large);
    compare(comm, "user", {user.data(), 1}, seconds);
    compare(comm, "communicator", memory.span(), seconds);
    compare(comm, "user", user, seconds);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
