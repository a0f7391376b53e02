// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Compiled with -ffast-math and DISTX_ACCEPT_FAST_MATH by fast_math.py: every check of NaN and infinity still works.
// Prints each check that does not, and ends with their number.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "distx/comm/decorators/faulty.hpp"
#include "distx/comm/decorators/throttled.hpp"
#include "distx/threads.hpp"
#include "distx/training.hpp"

namespace {

int failures = 0;

void expect(const std::string& what, bool good) {
  if (good) return;
  ++failures;
  std::printf("wrong: %s\n", what.c_str());
}

// Values that the compiler cannot assume to be finite.
template <class T>
T from_bits(std::uint64_t bits) {
  const volatile std::uint64_t hidden = bits;
  const auto word = static_cast<distx::detail::bits_of_t<T>>(hidden);
  T value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}
template <class T>
std::array<T, 4> not_finite() {
  constexpr std::uint64_t infinity = distx::detail::infinity_bits<T>, sign = distx::detail::sign_bit<T>;
  return {from_bits<T>(infinity), from_bits<T>(infinity | sign), from_bits<T>(infinity + 1),
          from_bits<T>(~std::uint64_t{0})};
}

template <class F>
void expect_error(const std::string& what, const std::string& part, F&& f) {
  try {
    f();
    expect(what + ": no error", false);
  } catch (const distx::Error& error) {
    expect(what + ": " + error.what(), std::string(error.what()).find(part) != std::string::npos);
  }
}

struct Case {
  distx::DataParallelOptions options{};
  float gradient = 1;  // on rank 1; 1 on rank 0
  distx::StepOptions step{.learning_rate = 0.1};
};

/// Returns a weight after one step of two ranks.
float weight_after(const Case& with) {
  float weight = 0;
  distx::spawn(2, [&](auto& self) {
    distx::ThreadCommunicator comm(self);
    std::vector<distx::Parameter<float>> parameters;
    parameters.emplace_back("w", std::size_t{1000});
    auto options = with.options;
    options.stage = 0;
    distx::DataParallel<distx::ZeRO<distx::Dynamic>> training(comm, parameters, distx::SGD{}, options);
    std::ranges::fill(training.gradient(parameters[0]), self.rank() == 1 ? with.gradient : 1.0f);
    training.ready(parameters[0]);
    training.step(with.step);
    if (self.rank() == 0) weight = parameters[0].value()[3];
  });
  return weight;
}

void check_training() {
  expect("a step without options", weight_after({.gradient = 3}) == -0.2f);
  expect("clip_norm = infinity does not clip",
         weight_after({.options = {.clip_norm = not_finite<double>()[0]}, .gradient = 3}) == -0.2f);
  for (const float value : not_finite<float>()) {
    expect_error("a clipped gradient that is not finite", "has no norm to clip",
                 [&] { weight_after({.options = {.clip_norm = 1}, .gradient = value}); });
    expect_error("a guarded gradient that is not finite", "is infinite or not a number on rank 1",
                 [&] { weight_after({.options = {.guard_every = 1}, .gradient = value}); });
  }
  for (const double value : not_finite<double>()) {
    expect_error("a loss that is not finite", "the loss of rank ",
                 [&] { weight_after({.step = {.learning_rate = 0.1, .loss = value}}); });
    expect_error("a rate that is not finite",
                 "invalid .learning_rate = ", [&] { weight_after({.step = {.learning_rate = value}}); });
    expect_error("a loss scale that is not finite", "loss_scale",
                 [&] { weight_after({.options = {.loss_scale = value}}); });
  }
  expect_error("clip_norm is NaN", "invalid .clip_norm = nan",
               [] { weight_after({.options = {.clip_norm = not_finite<double>()[2]}}); });

  distx::spawn(2, [](auto& self) {
    distx::ThreadCommunicator comm(self);
    std::vector<distx::Parameter<distx::float16>> parameters;
    parameters.emplace_back("w", std::size_t{100});
    distx::DataParallel<distx::ZeRO<1>, distx::Precision<distx::float16>> training(comm, parameters, distx::SGD{});
    std::ranges::fill(training.gradient(parameters[0]), distx::float16(self.rank() == 1 ? 1e9f : 1.0f));
    training.ready(parameters[0]);
    training.step({.learning_rate = 0.1});
    expect("a float16 overflow skips the step", training.skipped_steps() == 1 && parameters[0].value()[3].bits() == 0);
  });
}

template <class T>
void check_magnitudes(const char* type) {
  for (std::size_t size : {1, 5, 16, 19})
    for (std::size_t i = 0; i < size; ++i)
      for (const auto value : not_finite<distx::accumulator_t<T>>()) {
        std::vector<T> values(size, T(2.0f));
        values[i] = T(value);
        const double largest = distx::largest_magnitude(distx::HostStream{}, distx::Span<T>(values));
        const double norm = distx::fixed_point_norm(distx::HostStream{}, distx::Span<T>(values));
        expect(std::string("the magnitude of ") + type, !distx::detail::is_finite(largest) &&
                                                            !distx::detail::is_nan(largest) &&
                                                            !distx::detail::is_finite(norm));
      }
}

template <class T, class Bits>
void check_conversions(const char* type, Bits last) {
  for (std::uint32_t code = 0; code <= last; ++code) {
    const T value = T::from_bits(static_cast<Bits>(code));
    const T back(static_cast<float>(value));
    const float wide = value;
    const bool nan = distx::detail::is_nan(wide);
    // A NaN keeps neither sign nor payload, and no conversion gives an infinite float8.
    const bool saturates = sizeof(T) == 1 && !distx::detail::is_finite(wide);
    if (!nan && !saturates) expect(std::string(type) + " " + std::to_string(code), back.bits() == value.bits());
    if (nan) expect(std::string(type) + " NaN", distx::detail::is_nan(static_cast<float>(back)));
  }
}

template <class T>
void check_lanes() {
  using V = distx::lanes::Lanes<T>;
  const T values[V::size] = {T(-1.5), T(2)};
  const V x = V::load(values);
  expect("abs of lanes", abs(x)[0] == T(1.5) && abs(x)[1] == 2);
  expect("copysign of lanes", copysign(V(T(3)), x)[0] == -3 && copysign(V(T(3)), x)[1] == 3);
  for (const T value : not_finite<T>())
    expect("abs of a lane that is not finite", !distx::detail::is_finite(abs(V(value))[0]));
}

void check_options() {
  distx::SelfConnector self;
  distx::SerialCommunicator comm(self);
  for (const double value : not_finite<double>()) {
    expect_error("a schedule", "constant", [&] { distx::schedules::constant(value); });
    expect_error("SGD", "momentum", [&] { distx::SGD{.momentum = value}.validate(); });
    expect_error("AdamW", "epsilon", [&] { distx::AdamW{.epsilon = value}.validate(); });
    const distx::ParameterOptions group{.group = {.learning_rate_scale = value}},
        decay{.group = {.weight_decay = value}};
    expect_error("the scale of a group", "learning_rate_scale", [&] { distx::Parameter<float>("w", 3, group); });
    expect_error("the decay of a group", "weight_decay", [&] { distx::Parameter<float>("w", 3, decay); });
    expect_error("a fault", "probability", [&] { distx::Faulty(comm.share(), {distx::Fault{.probability = value}}); });
  }
  expect_error("a wire", "bandwidth",
               [&] { distx::Throttled(comm.share(), distx::WireSpeed{.bandwidth = not_finite<double>()[2]}); });
}

}  // namespace

int main() {
  check_magnitudes<float>("float");
  check_magnitudes<double>("double");
  check_magnitudes<distx::float16>("float16");
  check_magnitudes<distx::bfloat16>("bfloat16");
  check_conversions<distx::float16, std::uint16_t>("float16", 0xffff);
  check_conversions<distx::bfloat16, std::uint16_t>("bfloat16", 0xffff);
  check_conversions<distx::float8_e4m3, std::uint8_t>("float8_e4m3", 0xff);
  check_conversions<distx::float8_e5m2, std::uint8_t>("float8_e5m2", 0xff);
  check_lanes<float>();
  check_lanes<double>();
  check_options();
  check_training();
  std::printf("%d wrong; subnormal numbers are %s\n", failures,
              distx::detail::keeps_subnormals() ? "kept" : "flushed to zero");
  return std::min(failures, 100);
}
