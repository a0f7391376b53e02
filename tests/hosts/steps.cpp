// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A rank on one of several hosts: says where it is and which communicator is best, and then makes calls.
//   steps where          an all_reduce over the best communicator; prints a digest of its bits
//   steps serve BACKEND FOLDER
//                        calls with a deadline of 3 s until one throws; writes the error, and how long the call took,
//                        to the file FOLDER/RANK, since a launcher may not forward it any more; exits once all have
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <ranges>
#include <string>
#include <thread>
#include <vector>

#include <distx/distx.hpp>
#include <distx/file.hpp>
#include <distx/gloo.hpp>
#include <distx/mpi.hpp>
#include <distx/shm.hpp>
#include <distx/tcp.hpp>

namespace {

using Any = distx::AnyCommunicator<>;
constexpr std::chrono::seconds deadline(3);

void where(distx::AnyConnector& connector) {
  auto comm = distx::best_communicator(connector, std::chrono::seconds(20));
  std::vector<float> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = 1.0F / static_cast<float>(i + 1 + static_cast<std::size_t>(comm.rank()) * 7);
  distx::all_reduce(comm, values, distx::sum);
  std::printf("rank %d of %d: local %d of %d, %s, bits %016llx\n", connector.rank(), connector.size(),
              connector.local_rank(), connector.local_size(), std::string(comm.backend()).c_str(),
              static_cast<unsigned long long>(distx::detail::fnv1a(std::as_bytes(std::span(values)))));
}

void serve(distx::AnyConnector& connector, const std::string& backend, const std::string& folder) {
  auto comm = backend == "mpi"    ? Any(distx::MpiCommunicator(connector, {.deadline = deadline}))
              : backend == "gloo" ? Any(distx::GlooCommunicator(connector, {.deadline = deadline}))
                                  : distx::best_communicator(connector, deadline);
  std::vector<float> values(100000, 1.0F);
  auto began = std::chrono::steady_clock::now();
  const auto failed = [&](const char* type, const std::exception& error) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    const std::string path = folder + "/" + std::to_string(comm.rank());
    std::ofstream(path + ".part") << type << ' ' << took.count() << ' ' << error.what();
    std::filesystem::rename(path + ".part", path);
    // A launcher kills or interrupts the other ranks of a host when one exits without MPI_Finalize.
    const auto written = [&](int rank) { return std::filesystem::exists(folder + "/" + std::to_string(rank)); };
    (void)distx::detail::wait_until(
        std::chrono::seconds(10), [&] { return std::ranges::all_of(std::views::iota(0, comm.size()), written); },
        [] { return false; });
    std::_Exit(0);  // without the others, not even MPI can end
  };
  try {
    for (int step = 0;; ++step) {
      began = std::chrono::steady_clock::now();
      distx::all_reduce(comm, values, distx::average);
      if (step == 0) std::printf("rank %d serves\n", comm.rank()), std::fflush(stdout);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // a step's computation
    }
  } catch (const distx::TimeoutError& error) {
    failed("TimeoutError", error);
  } catch (const distx::RankFailure& error) {
    failed("RankFailure", error);
  } catch (const distx::RevokedError& error) {
    failed("RevokedError", error);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    auto connector = distx::connect(argc, argv);
    const std::string what = argc > 1 ? argv[1] : "where";
    if (what == "serve" && argc > 3)
      serve(connector, argv[2], argv[3]);
    else
      where(connector);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
