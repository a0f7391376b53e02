// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <concepts>
#include <cstdio>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <distx/comm.hpp>

namespace examples {

/// Writes a line to stderr in one call, so that the lines of several processes do not interleave.
inline void print_error(std::string line) {
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);  // stderr is unbuffered
}

/// Thrown after an error has been printed.
struct ErrorPrinted {};

/// Calls `f()` on every rank. If it throws on any rank, rank 0 prints the message of the first such rank, once, and
/// every rank throws. Collective.
/// @throws ErrorPrinted
template <distx::Connector C, std::invocable F>
void on_every_rank(C& connector, F&& f) {
  std::string message;
  try {
    f();
  } catch (const std::exception& error) {
    message = error.what();
    if (message.empty()) message = "unknown error";
  }
  const auto lengths = distx::all_gather_values(connector, message.size());
  std::size_t first = 0;
  while (first < lengths.size() && lengths[first] == 0) ++first;
  if (first == lengths.size()) return;
  message.resize(lengths[first]);
  connector.broadcast(std::as_writable_bytes(std::span(message)), static_cast<int>(first));
  if (connector.rank() == 0) print_error(first == 0 ? message : "rank " + std::to_string(first) + ": " + message);
  connector.barrier();  // no rank exits before the line is printed: the launcher would end the others
  throw ErrorPrinted();
}

/// Parses the flags, then calls `body()`; or, if `body` takes a distx::AnyConnector&, connects the ranks and passes it.
/// @return the program's status: 1 after an error, 2 for a bad flag; the message is printed as one line
template <class Body>
int run(CLI::App& app, int argc, char** argv, Body&& body) {
  std::string bad_flag;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    bad_flag = app.get_name() + ": " + error.what() + " (--help lists the flags)";
  }
  try {
    if constexpr (std::invocable<Body&, distx::AnyConnector&>) {
      auto connector = distx::connect(argc, argv);
      on_every_rank(connector, [&] {
        if (!bad_flag.empty()) throw std::runtime_error(bad_flag);
      });
      body(connector);
    } else {
      if (bad_flag.empty()) {
        body();
      } else {
        print_error(bad_flag);
        return 2;
      }
    }
    return 0;
  } catch (const ErrorPrinted&) {
    return bad_flag.empty() ? 1 : 2;
  } catch (const std::exception& error) {
    print_error(error.what());
    return 1;
  }
}

/// Accepts digits only, so that -1 is not taken for the largest number.
inline CLI::Validator whole_number() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        if (!text.empty() && text.find_first_not_of("0123456789") == std::string::npos) return "";
        return "'" + text + "' is not a whole number of at least 0";
      },
      "", "whole number");
}

}  // namespace examples
