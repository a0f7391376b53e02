// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Checks reductions, with the collective of scan.patch, on every backend of host memory. check.py compiles it with the
// patched headers.
//   scan                     ranks that are threads
//   mpirun -np 3 scan mpi    ranks that are processes
#include <distx/distx.hpp>
#include <distx/gloo.hpp>
#include <distx/mpi.hpp>
#include <distx/shm.hpp>

#include "comm/made_up_machines.hpp"
#include "conformance/backend.hpp"
#include "conformance/reductions.hpp"

namespace {

using conformance::Backend;
using distx::ThreadConnector;
using distx::Timeout;

/// Runs a part of the conformance suite on a communicator; returns the number of findings on this process's ranks.
int check(const char* name, const Backend& backend) {
  conformance::Report report;
  int ranks = 0;
  backend.run([&](const Backend::Make& make) {
    auto comm = make(std::chrono::minutes(4));
    conformance::Findings findings(report, comm.rank(), comm.size());
    conformance::EveryReduction{}(comm, findings);
    conformance::Float8Reductions{}(comm, findings);
    if (comm.rank() == 0) ranks = comm.size();
  });
  if (ranks > 0)
    std::printf("%s, at most %d ranks: %s\n", name, ranks, report.empty() ? "passed" : report.text().c_str());
  return report.empty() ? 0 : 1;
}

template <class C>
Backend of_threads() {
  return conformance::thread_ranks([](auto& connector, Timeout deadline) { return C(connector, {deadline}); });
}

/// Two hosts of one and two ranks.
Backend hierarchical() {
  return {false, true, [](const auto& body) {
            distx::spawn(distx::threads(3, std::chrono::minutes(4)), [&](ThreadConnector& connector) {
              test::MadeUpMachines made_up(connector, "011");
              using Threads = distx::ThreadCommunicator;
              body([&](Timeout deadline) {
                return Backend::Any(distx::Hierarchical<Threads, Threads>(made_up, deadline));
              });
            });
          }};
}

Backend of_processes(auto make) {
  return {true, false,
          [make](const auto& body) { body([&](Timeout deadline) { return Backend::Any(make(deadline)); }); }};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2)
    return check("serial", of_processes([](Timeout deadline) {
                   distx::SelfConnector self;
                   return distx::SerialCommunicator(self, deadline);
                 })) +
           check("threads", of_threads<distx::ThreadCommunicator>()) +
           check("shm", of_threads<distx::ShmCommunicator>()) + check("gloo", of_threads<distx::GlooCommunicator>()) +
           check("hierarchical", hierarchical());
  distx::MpiConnector world(argc, argv);
  const auto mpi = [&](distx::MpiCollectives collectives) {
    return of_processes([&world, collectives](Timeout deadline) {
      return distx::MpiCommunicator(world, {.deadline = deadline, .collectives = collectives});
    });
  };
  return check("shm of processes",
               of_processes([&](Timeout deadline) { return distx::ShmCommunicator(world, deadline); })) +
         check("mpi", mpi(distx::MpiCollectives::by_size)) + check("mpi, vendor", mpi(distx::MpiCollectives::vendor));
}
