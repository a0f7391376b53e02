// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Loads the weights of a small model on 3 ranks at stage 3, and saves them. Run by weights.py.
//
//     hand-over PATH DIRECTORY PREFIX   PREFIX: of the names in PATH
#include <cstdio>

#include <distx/checkpoint.hpp>
#include <distx/optim/adamw.hpp>
#include <distx/threads.hpp>

int main(int, char** argv) {
  try {
    distx::spawn(distx::threads(3), [&](distx::ThreadConnector& connector) {
      distx::ThreadCommunicator comm(connector);
      std::vector<distx::Parameter<float>> parameters;
      parameters.emplace_back("0.weight", 30, distx::ParameterOptions{.rows = 6});
      parameters.emplace_back("0.bias", 6);
      parameters.emplace_back("1.weight", 24, distx::ParameterOptions{.rows = 4});
      parameters.emplace_back("1.bias", 4);
      distx::DataParallel<distx::ZeRO<3>> training(comm, parameters, distx::AdamW{});
      distx::checkpoint::load_weights(argv[1], training,
                                      {.rename = [&](const std::string& name) { return argv[3] + name; }});
      distx::checkpoint::save(argv[2], training, {.step = 0});
    });
  } catch (const distx::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
