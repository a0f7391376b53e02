// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A program that ends in the way its argument names; endings.py checks the result.
#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <distx/distx.hpp>
#include <distx/mpi.hpp>

namespace {

/// Makes one call during which rank 1, or every rank, fails.
void fail(distx::AnyConnector& connector, const std::string& way) {
  distx::MpiOptions options;
  if (way == "one fails, no deadline") options.deadline = distx::no_timeout;
  distx::MpiCommunicator comm(connector, options);
  std::vector<float> x(10, 1.0f);
  if (way == "all fail" || comm.rank() == 1) throw std::runtime_error("a bad file");
  distx::all_reduce(comm, x, distx::sum);
}

/// A sum during which rank 1 is killed.
struct KillsRankOne {
  static constexpr bool commutative = true;
  static inline bool now = false;
  float operator()(float a, float b) const {
    if (now) std::raise(SIGKILL);
    return a + b;
  }
};

/// Kills rank 1 in the middle of a large call; `prints` the error before the destructors, which take seconds, if asked.
void be_killed(distx::AnyConnector& connector, bool prints) {
  distx::MpiCommunicator comm(connector);
  std::vector<float> x(std::size_t{4} << 20, 1.0f);
  distx::all_reduce(comm, x, KillsRankOne{});
  KillsRankOne::now = comm.rank() == 1;
  try {
    distx::all_reduce(comm, x, KillsRankOne{});
  } catch (const distx::Error& error) {
    if (prints) std::cerr << std::string("noticed: ") + error.what() + '\n';
    throw;
  }
}

/// Rank 1 is killed or never enters a call; the others catch the error in the scope of the connector, whose deadline is
/// ten minutes.
void catch_inside(int argc, char** argv, const std::string& way) {
  int rank = 0;
  {
    auto connector = distx::connect(argc, argv);
    rank = connector.rank();
    const auto processes = distx::all_gather_values(connector, ::getpid());
    try {
      distx::MpiCommunicator comm(connector, {.deadline = std::chrono::seconds(2)});
      if (comm.rank() == 1 && way == "killed, caught inside") std::raise(SIGKILL);
      if (comm.rank() == 1) {
        for (const int other : {0, 2})
          while (::kill(processes[static_cast<std::size_t>(other)], 0) == 0)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        std::raise(SIGKILL);
      }
      int one = 1;
      distx::all_reduce(comm, one, distx::sum);
    } catch (const distx::Error& error) {
      std::cout << std::string("caught: ") + error.what() + '\n' << std::flush;
    }
  }
  std::cout << std::string("the connector of rank ") + std::to_string(rank) + " is destroyed\n" << std::flush;
}

/// Kills ranks 1 and 3 of 4, one after the other; the others continue.
void continue_without(distx::MpiConnector connector, int rank) {
  using std::chrono::seconds;
  for (const int victim : {1, 3}) {
    distx::MpiCommunicator comm(connector);
    const auto lose = [&](const char* words, auto&& call) {
      try {
        call();
        std::cout << std::string("no error\n");
      } catch (const distx::Error& error) {
        std::cout << std::string(words) + (distx::is_rank_loss(error) ? ": lost\n" : error.what()) << std::flush;
      }
    };
    if (rank == victim) std::raise(SIGKILL);
    int one = 1;
    lose("all_reduce", [&] { distx::all_reduce(comm, one, distx::sum); });
    connector = connector.shrink(seconds(30));
  }
  distx::MpiCommunicator comm(connector);
  std::vector<int> sums(100000, rank);
  distx::all_reduce(comm, sums, distx::sum);
  std::cout << "rank " + std::to_string(rank) + " is " + std::to_string(comm.rank()) + " of " +
                   std::to_string(comm.size()) + ": sum " + std::to_string(sums.back()) + '\n'
            << std::flush;
}

/// Kills rank 1 before it enters a call that makes a communicator.
void be_killed_before(const std::string& way, distx::MpiConnector& connector) {
  std::optional<distx::MpiCommunicator> comm;
  if (way != "killed before it makes a communicator") comm.emplace(connector);
  if (way == "killed before it makes a communicator of those that are left") {
    connector = connector.shrink();
    comm.reset();
  }
  connector.barrier();
  if (connector.rank() == 1) std::raise(SIGKILL);
  if (comm)
    (void)comm->split(0, 0);
  else
    comm.emplace(connector);
}

/// Whether this process is killed when it enters MPI_Comm_split, which has no form that polls.
bool dies_in_mpi = false;

/// Kills rank 1 inside MPI's call, after all ranks have agreed to make it.
void be_killed_inside(distx::MpiConnector connector) {
  distx::MpiCommunicator comm(connector, {.deadline = std::chrono::seconds(3)});
  dies_in_mpi = comm.rank() == 1;
  (void)comm.split(0, 0);
}

/// A function that handles an event of libevent, and its argument.
struct Handler {
  void (*function)(int, short, void*);
  void* argument;
};

/// Whether the threads of Open MPI handle events late, as threads do that wait for a core.
bool handles_late = false;

void handle_late(int descriptor, short what, void* handler) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(600);
  while (std::chrono::steady_clock::now() < end) {
  }
  const std::unique_ptr<Handler> late(static_cast<Handler*>(handler));
  late->function(descriptor, what, late->argument);
}

int run(int argc, char** argv, const std::string& way) {
  handles_late = way == "handles late";
  std::optional<distx::MpiCommunicator> last;
  {
    if (way.starts_with("killed while")) {
      be_killed_inside(distx::MpiConnector(argc, argv, {.deadline = std::chrono::seconds(3)}));
      return 0;
    }
    if (way == "killed, and continued without" || way.starts_with("killed before")) {
      distx::MpiConnector connector(argc, argv, {.deadline = std::chrono::seconds(3)});
      if (way.starts_with("killed before")) be_killed_before(way, connector);
      const int rank = connector.rank();
      continue_without(std::move(connector), rank);
      return 0;
    }
    if (way.ends_with("caught inside")) {
      catch_inside(argc, argv, way);
      return 0;
    }
    auto connector = distx::connect(argc, argv);
    if (way.find("fail") != std::string::npos) fail(connector, way);
    if (way.starts_with("killed in a large call")) be_killed(connector, way.ends_with("printed at once"));
    if (way == "a communicator outlives the connector") last.emplace(connector);
  }
  if (last) {
    int one = 1;
    distx::all_reduce(*last, one, distx::sum);
    std::cout << "sum " << one << '\n';
    last.reset();
  }
  if (way == "once more") distx::MpiConnector again(argc, argv);
  return 0;
}

}  // namespace

// Takes the place of MPI's, as its profiling interface provides.
extern "C" int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* part) {
  if (dies_in_mpi) std::raise(SIGKILL);
  return PMPI_Comm_split(comm, color, key, part);
}

// Takes the place of libevent's for the components of Open MPI, whose events of this kind occur once.
extern "C" int event_assign(void* event, void* base, int descriptor, short what, void (*function)(int, short, void*),
                            void* argument) {
  static const auto original = reinterpret_cast<decltype(&event_assign)>(::dlsym(RTLD_NEXT, "event_assign"));
  Dl_info code{};
  const bool late = handles_late && ::dladdr(reinterpret_cast<void*>(function), &code) != 0 &&
                    std::strstr(code.dli_fname, "mca_pmix") != nullptr;
  if (!late) return original(event, base, descriptor, what, function, argument);
  std::cerr << std::string("handled late\n");
  return original(event, base, descriptor, what, handle_late, new Handler{function, argument});
}

int main(int argc, char** argv) {
  try {
    return run(argc, argv, argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::cerr << std::string("ended by: ") + error.what() + '\n';  // one write, because other ranks write too
    return 1;
  }
}
