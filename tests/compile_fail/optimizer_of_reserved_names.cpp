// expect: an optimizer's state_names are distinct, and none is 'step', 'master'
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

struct Counting {
  static constexpr std::size_t states = 1;
#ifndef DISTX_POSITIVE
  static constexpr std::array<std::string_view, 1> state_names{"step"};
#else
  static constexpr std::array<std::string_view, 1> state_names{"steps"};
#endif
  template <class T>
  constexpr T coefficients(const distx::Step& step) const {
    return static_cast<T>(step.learning_rate);
  }
  template <class V>
  static constexpr void update(const auto& rate, V& weight, V gradient, V& sum) {
    sum += gradient;
    weight -= rate * sum;
  }
};

void train(distx::ThreadCommunicator& comm, const std::vector<distx::Parameter<float>>& parameters) {
  distx::DataParallel<distx::ZeRO<1>> training(comm, parameters, Counting{});
}
