// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The main function of all test programs that mpirun starts: all ranks run all test cases in the same order and prefix
// failures with their rank.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <chrono>
#include <iostream>
#include <streambuf>
#include <string>

#include "mpi/world.hpp"
#include "run_cases.hpp"

namespace {

/// Writes whole lines to std::cout, prefixed with the rank.
class Prefixed : public std::streambuf {
 public:
  explicit Prefixed(std::string prefix) : prefix_(std::move(prefix)) {}
  Prefixed(const Prefixed&) = delete;
  Prefixed& operator=(const Prefixed&) = delete;
  ~Prefixed() override {
    if (!line_.empty()) overflow('\n');
  }

 private:
  int overflow(int letter) override {
    line_ += static_cast<char>(letter);
    if (letter == '\n') {
      std::cout << prefix_ + line_ << std::flush;
      line_.clear();
    }
    return letter;
  }

  std::string prefix_;
  std::string line_;
};

REGISTER_LISTENER("counter", 1, test::Counter);

distx::MpiConnector* the_world = nullptr;

int run(int argc, char** argv) {
  // Enough for a busy machine, and less than the harness's time limit.
  distx::MpiConnector connector(argc, argv, {.deadline = std::chrono::minutes(2)});
  the_world = &connector;
  doctest::Context context(argc, argv);
  Prefixed lines("[rank " + std::to_string(connector.rank()) + " of " + std::to_string(connector.size()) + "] ");
  std::ostream out(&lines);
  context.setCout(&out);
  context.setOption("no-colors", true);
  if (connector.rank() != 0) context.setOption("minimal", true);  // prints only failures
  return test::run_cases(context, argv[0], connector.rank() == 0);
}

}  // namespace

distx::MpiConnector& world() { return *the_world; }

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
