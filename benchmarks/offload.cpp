// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The cost of .state_folder: steps of 32 Mi float parameters with AdamW and without any computation, on one rank, and
// the memory that the process has resident afterwards.
//   build/benchmarks/offload              the optimizer's states in memory
//   build/benchmarks/offload /var/tmp     in files in that folder
#include <cstdio>
#include <cstring>
#include <fstream>
#include <vector>

#include <distx/distx.hpp>

#include "timing/samples.hpp"

namespace {

constexpr int steps = 15;
constexpr std::size_t parameters_each = std::size_t{1} << 21, parameter_count = 16;

/// Returns the MiB of a line of /proc/self/status, such as "RssAnon:".
double status(const char* line) {
  std::ifstream all("/proc/self/status");
  for (std::string each; std::getline(all, each);)
    if (each.starts_with(line)) return std::stod(each.substr(std::strlen(line))) / 1024;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  distx::spawn(distx::threads(1), [&](distx::ThreadConnector& connector) {
    distx::ThreadCommunicator comm(connector);
    std::vector<distx::Parameter<float>> parameters;
    for (std::size_t i = 0; i < parameter_count; ++i) parameters.emplace_back("p" + std::to_string(i), parameters_each);
    distx::DataParallel<distx::ZeRO<2>> training(comm, parameters, distx::AdamW{},
                                                 {.state_folder = argc > 1 ? argv[1] : ""});
    std::vector<double> times;
    double first = 0;
    for (int step = 0; step <= steps; ++step) {
      const auto begin = timing::clock::now();
      for (const auto& parameter : parameters) static_cast<void>(training.gradient(parameter));
      training.ready(parameters);
      training.step({.learning_rate = 1e-3});
      (step == 0 ? first : times.emplace_back()) = 1e3 * timing::since(begin);
    }
    std::printf(
        "a step takes %.0f ms (median of %d), the first %.0f ms; resident: %.0f MiB anonymous, %.0f MiB of files\n%s\n",
        timing::median(times), steps, first, status("RssAnon:"), status("RssFile:"),
        training.memory().to_string().c_str());
  });
}
