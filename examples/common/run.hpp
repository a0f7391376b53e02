// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdio>
#include <exception>

#include <CLI/CLI.hpp>

namespace examples {

/// Reads the flags and runs `body()`; an error ends the program with one sentence and exit code 1, a bad flag with 2.
template <class Body>
int run(CLI::App& app, int argc, char** argv, Body&& body) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    std::fprintf(stderr, "%s: %s (--help lists the flags)\n", app.get_name().c_str(), error.what());
    return 2;
  }
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace examples
