// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Ranks that part, as processes over shared memory; distx-flight then says where. Run by flight.py.
#include <csignal>
#include <cstdio>
#include <string_view>

#include <distx/comm.hpp>
#include <distx/file.hpp>
#include <distx/observe/flight_recorder.hpp>
#include <distx/shm.hpp>

namespace {

void part(distx::ShmCommunicator& comm, std::string_view how) {
  std::vector<float> values(4, 1.0f);
  std::vector<float> all(4 * static_cast<std::size_t>(comm.size()));
  const int last = comm.size() - 1;
  distx::all_reduce(comm, values, distx::sum);
  auto group = comm.split(comm.rank() % 2, 0);
  distx::barrier(group);
  if (comm.rank() == last) {
    if (how == "leaves") return;
    if (how == "dies") std::raise(SIGKILL);
    if (how == "other") return distx::broadcast(comm, values, 1);
    if (how == "queue") return distx::start_all_gather(comm, values, all).wait();
    if (how == "throws") throw std::runtime_error("rank " + std::to_string(last) + " gives up");
    if (how == "group") return distx::broadcast(group, values, 0);
  }
  const distx::flight::Label label({.step = 12, .phase = "backward", .parameter = "head.weight"});
  distx::all_reduce(comm, values, distx::sum);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view how = argc > 1 ? argv[1] : "agree";
  auto connector = distx::connect(argc, argv);
  try {
    distx::ShmCommunicator comm(connector, std::chrono::seconds(how == "queue" || how == "group" ? 3 : 60));
    part(comm, how);
    if (how == "agree") distx::flight::write_record(argv[2]);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
  }
  return 0;
}
