// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backend.hpp"

#include <CLI/CLI.hpp>

#include <distx/distx.hpp>
#include <distx/mpi.hpp>
#include <distx/shm.hpp>

namespace examples {

void Backend::describe(CLI::App& app) {
  app.add_option("--backend", name, "auto (mpi under mpirun, else serial), serial, threads, shm or mpi")
      ->check(CLI::IsMember({"auto", "serial", "threads", "shm", "mpi"}))
      ->capture_default_str();
  app.add_option("--ranks", ranks, "how many ranks, where no launcher starts them: for threads and shm")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
}

void Backend::run(distx::AnyConnector& connector, const std::function<void(distx::AnyCommunicator<>)>& body) const {
  using Any = distx::AnyCommunicator<>;
  const bool several = connector.size() > 1;
  if (name == "threads" && several)
    throw distx::ConnectError("--backend threads makes its ranks itself: start it without mpirun, or use shm or mpi");
  if (name == "threads") {
    distx::spawn(ranks, [&](auto& self) { body(Any(distx::ThreadCommunicator(self))); });
  } else if (name == "shm" && !several) {
    distx::spawn(ranks, [&](auto& self) { body(Any(distx::ShmCommunicator(self))); });
  } else if (name == "shm") {
    body(Any(distx::ShmCommunicator(connector)));
  } else if (name == "mpi" || (name == "auto" && several)) {
    body(Any(distx::MpiCommunicator(connector)));
  } else {
    body(Any(distx::SerialCommunicator(connector)));
  }
}

}  // namespace examples
