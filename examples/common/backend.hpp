// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include <distx/distx.hpp>
#include <distx/mpi.hpp>
#include <distx/shm.hpp>

namespace examples {

/// What the ranks of a program are, and what moves data among them.
struct Backend {
  std::string name = "auto";
  int ranks = 2;

  void describe(CLI::App& app) {
    app.add_option("--backend", name, "auto (mpi under mpirun, else serial), serial, threads, shm or mpi")
        ->check(CLI::IsMember({"auto", "serial", "threads", "shm", "mpi"}))
        ->capture_default_str();
    app.add_option("--ranks", ranks, "how many ranks, for threads, and for shm without mpirun")
        ->check(CLI::Range(1, 1000000))
        ->capture_default_str();
  }

  /// Calls body(comm) on every rank, with a distx::AnyCommunicator<>. Collective.
  /// @throws distx::ConnectError where the program was not started as the backend needs it
  template <class Body>
  void run(distx::AnyConnector& connector, Body&& body) const {
    const bool launched = connector.size() > 1;
    if (name == "threads" && launched)
      throw distx::ConnectError("--backend threads makes its ranks itself: start it without mpirun, or use mpi");
    const auto call = [&](auto comm) {
      distx::AnyCommunicator<> any(std::move(comm));
      body(any);
    };
    if (name == "threads") {
      distx::spawn(ranks, [&](auto& self) { call(distx::ThreadCommunicator(self)); });
    } else if (name == "shm" && !launched) {
      distx::spawn(ranks, [&](auto& self) { call(distx::ShmCommunicator(self)); });
    } else if (name == "shm") {
      call(distx::ShmCommunicator(connector));
    } else if (name == "mpi" || (name == "auto" && launched)) {
      call(distx::MpiCommunicator(connector));
    } else {
      call(distx::SerialCommunicator(connector));
    }
  }
};

}  // namespace examples
