// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A job of which one rank forks: `forker BACKEND WAY RANK MOMENT`. The ranks make 24 calls, every second one
// asynchronous, and compare their sums. The rank forks before call MOMENT, or within it if it is asynchronous; if
// MOMENT is negative, another thread of the rank forks after -MOMENT microseconds. The forked process then ends in its
// WAY:
//
//     exit, _exit, exec, return from main, throw from main; live: outlives the job
//     use: makes the calls that the rank makes, which must throw InvalidState
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>

#include <distx/comm/hierarchical.hpp>
#include <distx/distx.hpp>
#include <distx/file.hpp>
#include <distx/shm.hpp>
#include <distx/tcp.hpp>
#ifdef FORKER_WITH_GLOO
#include <distx/gloo.hpp>
#endif
#ifdef FORKER_WITH_MPI
#include <distx/mpi.hpp>
#endif

namespace {

constexpr std::chrono::seconds deadline(20);
constexpr int calls = 24;

/// The way in which the forked process ends, and the moment of the fork.
struct Fork {
  std::string_view way;
  int rank;
  int moment;
};

/// Ends the forked process; returns for it to return from main.
template <class C>
void end_forked(C& comm, std::string_view way) {
  if (way == "exit") std::exit(0);
  if (way == "exec") ::execlp("true", "true", nullptr);
  if (way == "live") ::sleep(3);
  if (way == "throw") throw distx::Error("thrown by the forked process");
  if (way == "return") return;
  if (way != "use") ::_exit(0);
  int accepted = 0;
  const auto rejects = [&](auto&& call) {
    try {
      call();
      ++accepted;
    } catch (const distx::InvalidState&) {  // as it must be
    }
  };
  std::vector<int> values(10000, 7);
  rejects([&] { distx::all_reduce(comm, values, distx::sum); });
  rejects([&] { auto pending = distx::start_all_reduce(comm, values, distx::sum); });
  rejects([&] { static_cast<void>(comm.split(0, 0)); });
  ::_exit(accepted);
}

/// @param in_main  whether the process can return from main: the functions of other threads end it
void expect_end(pid_t process, std::string_view way, bool in_main) {
  if (way == "live") return;
  int status = 0;
  ::waitpid(process, &status, 0);
  const bool any = !in_main && (way == "throw" || way == "return");
  if (!WIFEXITED(status) || (!any && WEXITSTATUS(status) != (way == "throw" ? 3 : 0)))
    throw std::logic_error("the forked process ended with status " + std::to_string(status));
}

template <class C>
void run(C comm, const Fork& fork) {
  std::optional<pid_t> forked;
  std::optional<std::jthread> thread;
  const bool forks = comm.rank() == fork.rank;
  if (forks && fork.moment < 0)
    thread.emplace([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(-fork.moment));
      const pid_t process = ::fork();
      if (process != 0) {
        expect_end(process, fork.way, false);
        return;
      }
      try {
        end_forked(comm, fork.way);
      } catch (...) {
      }
    });
  for (int call = 0; call < calls; ++call) {
    const std::size_t count = call % 4 < 2 ? 5 : 100000;
    std::vector<int> values(count, call + comm.rank());
    std::optional<distx::Pending<>> pending;
    if (call % 2 == 1) pending = distx::start_all_reduce(comm, values, distx::sum);
    if (forks && call == fork.moment) forked = ::fork();
    if (forked == 0) return end_forked(comm, fork.way);
    if (pending)
      pending->wait();
    else
      distx::all_reduce(comm, values, distx::sum);
    const int sum = call * comm.size() + comm.size() * (comm.size() - 1) / 2;
    if (values != std::vector<int>(count, sum)) throw std::logic_error("a wrong sum in call " + std::to_string(call));
    if (forked) expect_end(*std::exchange(forked, std::nullopt), fork.way, comm.backend() != "threads");
  }
  auto part = comm.split(comm.rank() % 2, comm.rank());
  int members = 1;
  distx::all_reduce(part, members, distx::sum);
  if (members != part.size()) throw std::logic_error("a wrong sum after split");
  thread.reset();
  std::printf("rank %d ends right\n", comm.rank());
}

int connect_and_run(int argc, char** argv, std::string_view backend, const Fork& fork) {
  if (backend == "threads") {
    distx::spawn(2, [&](distx::ThreadConnector& self) { run(distx::ThreadCommunicator(self, deadline), fork); });
    return 0;
  }
  auto connector = distx::connect(argc, argv);
  if (backend == "shm") run(distx::ShmCommunicator(connector, deadline), fork);
#ifdef FORKER_WITH_GLOO
  if (backend == "gloo") run(distx::GlooCommunicator(connector, {.deadline = deadline}), fork);
  if (backend == "hierarchical")
    run(distx::Hierarchical<distx::ShmCommunicator, distx::GlooCommunicator>(connector, deadline), fork);
#endif
#ifdef FORKER_WITH_MPI
  if (backend == "mpi") run(distx::MpiCommunicator(connector, {.deadline = deadline}), fork);
  if (backend == "mpi-vendor")
    run(distx::MpiCommunicator(connector, {.deadline = deadline, .collectives = distx::MpiCollectives::vendor}), fork);
#endif
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 5) return 2;
  return connect_and_run(argc, argv, argv[1], {argv[2], std::atoi(argv[3]), std::atoi(argv[4])});
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 3;
}
