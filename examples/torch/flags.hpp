// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdlib>
#include <string>

#include <torch/types.h>
#include <CLI/CLI.hpp>

namespace examples {

/// The flags of the examples that use LibTorch. `--help` and errors end the process.
struct TorchFlags {
  std::string digits = "build/data/digits.csv.gz";
  int stage = 0;
  int steps = 100;
  int batch = 64;
  at::ScalarType type = at::kFloat;

  TorchFlags(int argc, char** argv) {
    CLI::App app("Trains a convolutional network of LibTorch's on real digits", "train_mnist");
    bool wide = false;
    app.add_option("--digits", digits, "the file that tools/digits writes")->capture_default_str();
    app.add_option("--stage", stage, "of ZeRO, with several ranks")->check(CLI::Range(0, 3))->capture_default_str();
    app.add_option("--steps", steps, "number of steps")->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--batch", batch, "images of a step, of all ranks")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_flag("--double", wide, "compute in float64");
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      std::exit(app.exit(error));
    }
    if (wide) type = at::kDouble;
  }
};

}  // namespace examples
