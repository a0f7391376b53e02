// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tests which communicator is chosen for one rank, one process, one host and several hosts. Thread communicators
// replace the vendors'.
#include "distx/comm/best_communicator.hpp"

#include <doctest/doctest.h>

#include <atomic>

#include "comm/made_up_machines.hpp"
#include "comm/outcomes.hpp"

namespace {

/// Pretends to be several processes on these hosts.
class Processes : public test::MadeUpMachines<distx::ThreadConnector> {
  using base = test::MadeUpMachines<distx::ThreadConnector>;

 public:
  using base::base;
  bool strangers = true;
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
    std::vector<std::byte> told(send.begin(), send.end());
    struct {
      const void* address;
      std::int64_t began;
    } process;
    if (strangers && told.size() == sizeof process) {
      std::memcpy(&process, told.data(), sizeof process);
      process.began += rank();
      std::memcpy(told.data(), &process, sizeof process);
    }
    base::all_gather(told, receive);
  }
};

/// Returns the chosen backend or the error message, the same on every rank.
template <class SharedMemory = distx::detail::NoMaker, class Mpi = distx::detail::NoMaker,
          class Gloo = distx::detail::NoMaker>
std::string chosen(std::string_view machines, bool strangers) {
  std::vector<std::string> all(machines.size());
  distx::spawn(static_cast<int>(machines.size()), [&](distx::ThreadConnector& connector) {
    Processes processes(connector, machines);
    processes.strangers = strangers;
    auto& mine = all[static_cast<std::size_t>(connector.rank())];
    try {
      auto comm = distx::best_communicator<Processes, SharedMemory, Mpi, Gloo>(processes);
      mine = comm.backend();
      int total = 1;
      distx::all_reduce(comm, total, distx::sum);
      if (total != connector.size()) mine += ", which does not add";
    } catch (const distx::ConnectError& error) {
      mine = error.message();
    }
  });
  for (const auto& one : all)
    if (one != all.front()) return "ranks differ: " + all.front() + ", and " + one;
  return all.front();
}

bool serves = true, serves_threads = true;

struct StandIn {
  template <distx::Connector C>
  static distx::AnyCommunicator<> make(C& connector, distx::Timeout deadline) {
    return distx::AnyCommunicator<>(distx::ThreadCommunicator(connector, deadline));
  }
  template <distx::Connector C>
  static bool serves(C&) {
    return ::serves;
  }
  static bool serves_threads() { return ::serves_threads; }
};

std::atomic<int> gloo_made = 0;

struct Gloo {
  template <distx::Connector C>
  static distx::AnyCommunicator<> make(C& connector, distx::Timeout deadline) {
    ++gloo_made;
    return StandIn::make(connector, deadline);
  }
};

TEST_CASE("best_communicator selects the backend by the location of the ranks") {
  const auto missing = [](int ranks, const std::string& vendor) {
    return "no communicator fits these " + std::to_string(ranks) + " ranks: include " + vendor;
  };
  const std::string shm = "<distx/shm.hpp>", network = "<distx/gloo.hpp>, or <distx/mpi.hpp> if mpirun starts them";
  CHECK(chosen("0", true) == "serial");
  CHECK(chosen("000", false) == "threads");
  CHECK(chosen("00", true) == missing(2, shm));
  CHECK(chosen("012", false) == missing(3, network));
  CHECK(chosen("0112", false) == missing(4, shm));

  // ThreadCommunicator accepts thread ranks regardless of the assignment to hosts.
  CHECK(chosen<StandIn>("0112", false) == missing(4, network));
  CHECK(chosen<StandIn, StandIn>("0112", false) == "threads+threads");
  CHECK(chosen<StandIn, StandIn>("012", false) == "threads");
  serves_threads = false;
  CHECK(chosen<StandIn, StandIn>("012", false) == "threads");
  CHECK(chosen<StandIn, StandIn>("0112", false).find("MPI was not started for calls of several threads") !=
        std::string::npos);
}

TEST_CASE("best_communicator selects Gloo between hosts if MPI did not start the ranks") {
  serves_threads = true;
  for (const bool by_mpi : {true, false}) {
    CAPTURE(by_mpi);
    serves = by_mpi;
    for (const std::string_view machines : {"012", "0112"}) {
      gloo_made = 0;
      CHECK(chosen<StandIn, StandIn, Gloo>(machines, false) == (machines.size() == 3 ? "threads" : "threads+threads"));
      CHECK(gloo_made == (by_mpi ? 0 : static_cast<int>(machines.size())));
    }
  }
  serves = false;
  CHECK(chosen<StandIn, distx::detail::NoMaker, Gloo>("012", false) == "threads");
  // MPI is not initialized, so it is not asked for its thread level.
  serves_threads = false;
  CHECK(chosen<StandIn, StandIn, Gloo>("0112", false) == "threads+threads");
  CHECK(chosen<StandIn, StandIn>("0112", false).find("include <distx/gloo.hpp>, or <distx/mpi.hpp>") !=
        std::string::npos);
  serves = true;
}

}  // namespace
