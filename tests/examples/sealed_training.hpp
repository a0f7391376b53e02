// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <distx/optim/sgd.hpp>
#include <distx/threads.hpp>
#include <distx/training.hpp>

#include "common/portable_random.hpp"

namespace examples {

/// A training whose weights are not numbers, except those that are unsharded: a model that reads one outside its scope
/// computes nothing but NaN.
template <class Weight>
class SealedTraining {
 public:
  using Parameter = distx::Parameter<Weight>;

  template <class Parameters>
  explicit SealedTraining(const Parameters& parameters) : training_(comm_, parameters, distx::SGD{}) {
    for (const Parameter* parameter : parameters) {
      parameters_.push_back(parameter);
      Sealed& sealed = sealed_[parameter];
      sealed.values.assign(parameter->value().begin(), parameter->value().end());
      sealed.gradient = parameter->gradient();
      seal(*parameter);
    }
  }

  /// Opens the parameters until the scope ends.
  template <class... P>
  [[nodiscard]] auto unshard(const P&... parameters) {
    (open(parameters), ...);
    return Scope(this, {&parameters...});
  }
  template <class... P>
  void ready(const P&... parameters) {
    training_.ready(parameters...);
  }

  /// Returns the values that the parameter has while it is open; they may be changed while it is not.
  [[nodiscard]] std::vector<Weight>& values(const Parameter& parameter) { return sealed_.at(&parameter).values; }
  /// What backward has left.
  [[nodiscard]] std::span<const Weight> gradient(const Parameter& parameter) const {
    const auto gradient = sealed_.at(&parameter).gradient;
    return {gradient.data(), gradient.size()};
  }
  /// Ends a step without an update.
  /// @throws distx::MismatchError unless every parameter was ready as often as it is used
  void finish() {
    training_.reduce_gradients();
    training_.gather_weights();
  }
  /// Numbers far from the tame initial ones.
  void randomize(Generator& generator) {
    for (const Parameter* parameter : parameters_) {
      std::ranges::generate(values(*parameter), [&] { return number(uniform(generator, -0.7, 0.7)); });
    }
  }

 private:
  struct Sealed {
    std::vector<Weight> values{};
    distx::Span<Weight> gradient{};
    int opened = 0;
  };

  class Scope {
   public:
    Scope(SealedTraining* training, std::vector<const Parameter*> parameters)
        : training_(training), parameters_(std::move(parameters)) {}
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() {
      for (const Parameter* parameter : parameters_) {
        if (--training_->sealed_.at(parameter).opened == 0) seal(*parameter);
      }
    }

   private:
    SealedTraining* training_;
    std::vector<const Parameter*> parameters_;
  };

  static Weight number(double value) { return static_cast<Weight>(static_cast<distx::accumulator_t<Weight>>(value)); }
  void open(const Parameter& parameter) {
    Sealed& sealed = sealed_.at(&parameter);
    if (sealed.opened++ == 0) std::ranges::copy(sealed.values, parameter.value().begin());
  }
  static void seal(const Parameter& parameter) {
    std::ranges::fill(parameter.value(), number(std::numeric_limits<double>::quiet_NaN()));
  }

  distx::SelfConnector self_;
  distx::SerialCommunicator comm_{self_};
  distx::DataParallel<> training_;
  std::vector<const Parameter*> parameters_;
  std::map<const Parameter*, Sealed> sealed_;
};

}  // namespace examples
