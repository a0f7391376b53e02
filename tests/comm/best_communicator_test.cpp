// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What is chosen for ranks alone, in one process, on one machine, on several. In place of the vendors, threads are made
// known by their names.
#include "distx/comm/best_communicator.hpp"

#include <doctest/doctest.h>

#include "comm/made_up_machines.hpp"
#include "comm/outcomes.hpp"

namespace {

/// Passes itself off as several processes of these machines.
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

/// The backend chosen, or the words of the error, on every rank alike.
std::string chosen(std::string_view machines, bool strangers) {
  std::vector<std::string> all(machines.size());
  distx::spawn(static_cast<int>(machines.size()), [&](distx::ThreadConnector& connector) {
    Processes processes(connector, machines);
    processes.strangers = strangers;
    auto& mine = all[static_cast<std::size_t>(connector.rank())];
    try {
      auto comm = distx::best_communicator(processes);
      mine = comm.backend();
      int total = 1;
      distx::all_reduce(comm, total, distx::sum);
      if (total != connector.size()) mine += ", which does not add";
    } catch (const distx::ConnectError& error) {
      mine = error.what();
      if (const auto at = mine.find("these "); at != std::string::npos) mine.erase(0, at);
    }
  });
  for (const auto& one : all)
    if (one != all.front()) return "ranks differ: " + all.front() + ", and " + one;
  return all.front();
}

distx::AnyCommunicator<> make_threads(distx::AnyConnector& connector, distx::Timeout deadline) {
  return distx::AnyCommunicator<>(distx::ThreadCommunicator(connector, deadline));
}

bool serves_threads = true;

TEST_CASE("the best communicator for where the ranks are") {
  const auto missing = [](int ranks, const std::string& vendor) {
    return "these " + std::to_string(ranks) + " ranks need a communicator of <distx/" + vendor +
           ".hpp>: include it beside <distx/distx.hpp>";
  };
  CHECK(chosen("0", true) == "serial");
  CHECK(chosen("000", false) == "threads");
  CHECK(chosen("00", true) == missing(2, "shm"));
  CHECK(chosen("012", false) == missing(3, "mpi"));
  CHECK(chosen("0112", false) == missing(4, "shm"));

  // Thread ranks are no strangers to ThreadCommunicator, whatever the machines.
  REQUIRE(distx::register_communicator({.name = "shm", .make = make_threads, .serves_threads = [] { return true; }}));
  CHECK(chosen("0112", false) == missing(4, "mpi"));
  REQUIRE(distx::register_communicator(
      {.name = "mpi", .make = make_threads, .serves_threads = [] { return serves_threads; }}));
  CHECK(chosen("0112", false) == "threads+threads");
  CHECK(chosen("012", false) == "threads");
  CHECK_FALSE(distx::register_communicator({.name = "mpi", .make = make_threads, .serves_threads = nullptr}));
  serves_threads = false;
  CHECK(chosen("012", false) == "threads");
  CHECK(chosen("0112", false).find("MPI was not started for calls of several threads") != std::string::npos);
}

}  // namespace
