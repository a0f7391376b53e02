// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A rank that is killed while it averages gradients and updates weights in one pass.
#include <doctest/doctest.h>
#include <distx/optim/sgd.hpp>
#include <distx/training.hpp>

#include "shm/forked.hpp"
#include "shm/system.hpp"

namespace {

using namespace std::chrono_literals;

/// Kills the rank in the pass: the coefficients of a step are computed once the gradients can be read.
struct Deadly : distx::SGD {
  bool kills = false;
  template <class T>
  [[nodiscard]] distx::SGD::Coefficients<T> coefficients(const distx::Step& step) const {
    if (kills && step.number == 2) ::raise(SIGKILL);
    return distx::SGD::coefficients<T>(step);
  }
};

}  // namespace

TEST_CASE("a rank that is killed in one pass ends the step of the others with RankFailure") {
  const auto ended = test::forked(3, [](test::ForkedConnector& connector, test::Board&) {
    distx::ShmCommunicator comm(connector, 60s);
    if (!comm.passes_operands()) return 20;
    std::vector<distx::Parameter<float>> parameters;
    parameters.emplace_back("weights", std::size_t{100000});
    auto& weights = parameters.front();
    Deadly optimizer;
    optimizer.kills = comm.rank() == 1;
    distx::DataParallel<distx::ZeRO<1>> training(comm, parameters, optimizer, {.overlap = false});
    try {
      for (int step = 0; step < 2; ++step) {
        training.gradient(weights)[0] = 1;
        training.ready(weights);
        training.step({.learning_rate = 0.5});
      }
      return 10;
    } catch (const distx::RankFailure& failure) {
      return failure.failed_rank() == 1 ? 0 : 11;
    }
  });
  CHECK(ended == std::vector<int>{0, 1000 + SIGKILL, 0});
}
