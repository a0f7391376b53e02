// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The cost of a communicator of many ranks of one host: the time to make it, the time of a tiny all-reduce, and the
// memory that it adds, on processes in shared memory and on threads. Prints two tables.
//
//   many_ranks [PROCESSES [THREADS]]    (default: 200 and 1000; 2 and 16 processes are measured, too)
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <distx/distx.hpp>
#include <distx/file.hpp>
#include <distx/shm.hpp>

#include "timing/samples.hpp"

namespace {

constexpr int batches = 5, calls = 4;

/// When a rank began and ended, on the clock that all ranks of the host share.
struct Interval {
  double begin = 0, end = 0;
};

template <class F>
Interval interval_of(F&& f) {
  const auto now = [] { return std::chrono::duration<double>(timing::clock::now().time_since_epoch()).count(); };
  const double begin = now();
  f();
  return {begin, now()};
}

/// Returns the seconds from the first rank's begin to the last rank's end.
template <class C>
double span_of(C& comm, Interval mine) {
  double first = -mine.begin;
  distx::all_reduce(comm, first, distx::max);
  distx::all_reduce(comm, mine.end, distx::max);
  return mine.end + first;
}

/// Returns the median seconds of an all-reduce of 4 B.
template <class C>
double all_reduce_seconds(C& comm) {
  std::vector<double> times;
  float value = 0;
  for (int batch = 0; batch <= batches; ++batch) {
    distx::barrier(comm);
    const Interval mine = interval_of([&] {
      for (int call = 0; call < calls; ++call) distx::all_reduce(comm, value, distx::sum);
    });
    const double all = span_of(comm, mine) / calls;
    if (batch > 0) times.push_back(all);  // the first warms up
  }
  return timing::median(times);
}

/// The memory of this process, in bytes.
struct Memory {
  double own = 0;      ///< private pages, without those that it still shares with its parent
  double segment = 0;  ///< resident shared memory of distx, a page of n processes counted as 1/n in each
  double mapped = 0;   ///< the size of that shared memory

  static Memory now() {
    Memory all;
    std::ifstream maps("/proc/self/smaps");
    bool is_segment = false;
    for (std::string line; std::getline(maps, line);) {
      const auto kib = [&](const char* name) {
        return line.starts_with(name) ? 1024 * std::strtod(line.c_str() + std::string_view(name).size(), nullptr) : 0;
      };
      if (line.find('-') < line.find(' ')) is_segment = line.find("/memfd:distx") != std::string::npos;
      if (!is_segment) all.own += kib("Private_Dirty:");
      if (is_segment) all.segment += kib("Pss:");
      if (is_segment) all.mapped += kib("Size:");
    }
    return all;
  }
};

/// Returns the mean over the ranks.
template <class C>
double mean(C& comm, double value) {
  distx::all_reduce(comm, value, distx::sum);
  return value / comm.size();
}

/// Calls that use each kind of memory of a communicator: slots, staging buffers, messages.
template <class C>
void use(C& comm) {
  std::vector<float> large(std::size_t{1} << 18, 1.0f);
  distx::all_reduce(comm, large, distx::sum);
  const int right = (comm.rank() + 1) % comm.size(), left = (comm.rank() + comm.size() - 1) % comm.size();
  std::vector<float> received(4);
  distx::send_receive(comm, std::vector<float>(4, 1.0f), right, received, left);
}

void measure_processes(int ranks) {
  distx::spawn_processes(ranks, [&](distx::FileConnector& connector) {
    const Memory before = Memory::now();
    connector.barrier();
    std::optional<distx::ShmCommunicator> comm;
    const Interval mine = interval_of([&] { comm.emplace(connector); });
    const double making = span_of(*comm, mine), small = all_reduce_seconds(*comm);
    distx::barrier(*comm);  // each rank's pages count as long as all ranks map them
    const Memory made = Memory::now();
    distx::barrier(*comm);
    use(*comm);
    distx::barrier(*comm);
    const Memory used = Memory::now();
    distx::barrier(*comm);
    const auto kib = [&](double bytes) { return mean(*comm, bytes) / 1024; };
    const double own = kib(made.own - before.own), segment = kib(made.segment), own_used = kib(used.own - before.own),
                 segment_used = kib(used.segment);
    if (comm->rank() == 0)
      std::printf("| %d | %.0f | %.3f | %.0f | %.0f | %.0f | %.0f | %.0f |\n", ranks, 1e3 * making, 1e3 * small, own,
                  segment, own_used, segment_used, made.mapped / 1024 / ranks);
    std::fflush(stdout);
  });
}

void measure_threads(int ranks) {
  distx::spawn(distx::threads(ranks), [&](distx::ThreadConnector& connector) {
    connector.barrier();  // all threads have begun
    const double before = connector.rank() == 0 ? Memory::now().own : 0;
    connector.barrier();
    std::optional<distx::ThreadCommunicator> comm;
    const Interval mine = interval_of([&] { comm.emplace(connector); });
    const double making = span_of(*comm, mine), small = all_reduce_seconds(*comm);
    distx::barrier(*comm);
    const double added = comm->rank() == 0 ? Memory::now().own - before : 0;
    distx::barrier(*comm);
    if (comm->rank() == 0)
      std::printf("| %d | %.0f | %.3f | %.0f |\n", ranks, 1e3 * making, 1e3 * small, added / 1024 / ranks);
  });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int processes = argc > 1 ? std::atoi(argv[1]) : 200, threads = argc > 2 ? std::atoi(argv[2]) : 1000;
    std::printf(
        "| processes | making, ms | all-reduce of 4 B, ms | private memory per rank, KiB | shared | private after "
        "other "
        "calls | shared | mapped |\n|---:|---:|---:|---:|---:|---:|---:|---:|\n");
    for (const int ranks : {2, 16})
      if (ranks < processes) measure_processes(ranks);
    measure_processes(processes);
    std::printf("\n| threads | making, ms | all-reduce of 4 B, ms | memory per rank, KiB |\n|---:|---:|---:|---:|\n");
    measure_threads(threads);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
