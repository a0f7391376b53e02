// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <chrono>
#include <cmath>
#include <cstdint>
#include <vector>

#include "distx/cuda.hpp"
#include "distx/distx.hpp"
#include "distx/nccl.hpp"

// The training of the tests in which a rank is lost.
namespace nccl_test {

using Training = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::On<distx::Cuda>, distx::Replicate>;
using Parameters = std::vector<distx::Parameter<float, distx::Cuda>>;

constexpr std::uint64_t last_step = 3;
const distx::NcclOptions options{.deadline = std::chrono::seconds(20)};

inline Parameters model() {
  Parameters parameters;
  parameters.emplace_back("a.weight", 1001, distx::ParameterOptions{.rows = 13});
  parameters.emplace_back("a.bias", 33);
  return parameters;
}
/// Makes a step whose gradients depend on the step and the rank. Calls `at_call()` before each call of the training.
template <class AtCall>
void make_step(Training& training, Parameters& parameters, std::uint64_t step, int rank, AtCall&& at_call) {
  for (auto& parameter : parameters) {
    at_call();
    const auto weights = training.unshard(parameter);
    const auto gradient = training.gradient(parameter);
    std::vector<float> values(gradient.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = std::cos(0.01f * static_cast<float>(i) + static_cast<float>(step) + static_cast<float>(rank));
    distx::copy({}, gradient, distx::Span<const float>(values));
    distx::CudaStreamRef{}.synchronize();
    at_call();
    training.ready(parameter);
  }
  at_call();
  training.step({.learning_rate = 0.1});
}
inline void make_step(Training& training, Parameters& parameters, std::uint64_t step, int rank) {
  make_step(training, parameters, step, rank, [] {});
}

}  // namespace nccl_test
