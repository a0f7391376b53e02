// expect: the optimizer's update must be a template over the number type: 'template <class V> static constexpr void update(const auto& coefficients, V& weight, V gradient, V& state...)'
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

struct OneNumber {
  static constexpr std::size_t states = 1;
  template <class T>
  constexpr T coefficients(const distx::Step& step) const {
    return static_cast<T>(step.learning_rate);
  }
#ifndef DISTX_POSITIVE
  static void update(float rate, float& weight, float gradient, float& sum) {
#else
  template <class V>
  static void update(const auto& rate, V& weight, V gradient, V& sum) {
#endif
    sum += gradient;
    weight -= rate * sum;
  }
};

void train(distx::ThreadCommunicator& comm, const std::vector<distx::Parameter<float>>& parameters) {
  distx::DataParallel<distx::ZeRO<1>> training(comm, parameters, OneNumber{});
}
