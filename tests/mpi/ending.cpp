// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A program that ends in the way its argument names; endings.py checks the result.
#include <csignal>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
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

/// Kills rank 1 in the middle of a large call.
void be_killed(distx::AnyConnector& connector) {
  distx::MpiCommunicator comm(connector, {.deadline = std::chrono::seconds(5)});
  std::vector<float> x(std::size_t{4} << 20, 1.0f);
  distx::all_reduce(comm, x, KillsRankOne{});
  KillsRankOne::now = comm.rank() == 1;
  distx::all_reduce(comm, x, KillsRankOne{});
}

int run(int argc, char** argv, const std::string& way) {
  std::optional<distx::MpiCommunicator> last;
  {
    auto connector = distx::connect(argc, argv);
    if (way.find("fail") != std::string::npos) fail(connector, way);
    if (way == "killed in a large call") be_killed(connector);
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

int main(int argc, char** argv) {
  try {
    return run(argc, argv, argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::cerr << std::string("ended by: ") + error.what() + '\n';  // one write, because other ranks write too
    return 1;
  }
}
