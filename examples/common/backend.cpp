// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backend.hpp"

#include <CLI/CLI.hpp>

#include <distx/distx.hpp>
#include <distx/file.hpp>
#ifdef EXAMPLES_WITH_GLOO
#include <distx/gloo.hpp>
#endif
#include <distx/mpi.hpp>
#ifdef EXAMPLES_WITH_PMIX
#include <distx/pmix.hpp>  // DISTX_CONNECT=pmix:// connects mpirun's ranks without MPI
#endif
#include <distx/shm.hpp>
#include <distx/tcp.hpp>

#include "run.hpp"

namespace examples {

namespace {

bool started_by_mpi(distx::AnyConnector& connector) { return connector.target<distx::MpiConnector>() != nullptr; }

/// @throws distx::ConnectError if this build does not have the backend
void check_built([[maybe_unused]] const std::string& backend) {
#ifndef EXAMPLES_WITH_GLOO
  if (backend == "gloo") throw distx::ConnectError("--backend gloo requires Gloo: install libgloo-dev and build again");
#endif
}

}  // namespace

void Backend::describe(CLI::App& app) {
  app.add_option("--backend", name,
                 "auto, serial, threads, shm, mpi, gloo or best; auto is mpi under mpirun, shm under another launcher, "
                 "else serial; best is shm inside each host, and mpi or gloo across hosts")
      ->check(CLI::IsMember({"auto", "serial", "threads", "shm", "mpi", "gloo", "best"}))
      ->capture_default_str();
  app.add_option("--ranks", ranks, "number of ranks if no launcher starts them, for threads and shm")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
}

void Backend::run(distx::AnyConnector& connector, const std::function<void(distx::AnyCommunicator<>)>& body) const {
  using Any = distx::AnyCommunicator<>;
  const bool several = connector.size() > 1;
  on_every_rank(connector, [&] {
    if (name == "threads" && several)
      throw distx::ConnectError(
          "--backend threads starts its ranks itself: start the program without a launcher, or use "
          "--backend shm or mpi");
    if (name == "mpi" && several && !started_by_mpi(connector))
      throw distx::ConnectError("--backend mpi requires mpirun: start the program with mpirun, or use --backend shm");
    check_built(name);
  });
  if (name == "threads") {
    distx::spawn(ranks, [&](auto& self) { body(Any(distx::ThreadCommunicator(self))); });
  } else if (name == "shm" && !several) {
    distx::spawn(ranks, [&](auto& self) { body(Any(distx::ShmCommunicator(self))); });
  } else if (name == "best") {
    body(distx::best_communicator(connector));
  } else if (name == "serial" || (name == "auto" && !several)) {
    body(Any(distx::SerialCommunicator(connector)));
  } else {
    body(communicator_of_processes(connector, name));
  }
}

distx::AnyCommunicator<> communicator_of_processes(distx::AnyConnector& connector, const std::string& backend,
                                                   distx::Timeout deadline) {
  check_built(backend);
#ifdef EXAMPLES_WITH_GLOO
  if (backend == "gloo") return distx::AnyCommunicator<>(distx::GlooCommunicator(connector));
#endif
  if (backend == "mpi" || (backend == "auto" && started_by_mpi(connector)))
    return distx::AnyCommunicator<>(distx::MpiCommunicator(connector, {.deadline = deadline}));
  return distx::AnyCommunicator<>(distx::ShmCommunicator(connector));
}

}  // namespace examples
