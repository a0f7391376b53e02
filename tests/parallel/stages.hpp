// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <doctest/doctest.h>

#include "toy.hpp"

// The toy model, trained at every stage of ZeRO by one text.
namespace stages {

using Training = distx::DataParallel<distx::ZeRO<distx::Dynamic>>;

/// Three layers to a unit.
inline std::string name(std::size_t p) { return "block" + std::to_string(p / 3) + ".layer" + std::to_string(p); }

inline std::vector<distx::Parameter<float>> owned() {
  std::vector<distx::Parameter<float>> parameters;
  for (std::size_t p = 0; p < toy::sizes.size(); ++p)
    parameters.emplace_back(name(p), toy::sizes[p], [p](distx::Span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(toy::first_weight(p, i));
    });
  return parameters;
}

struct Way {
  distx::DataParallelOptions options{};
  bool borrowed = false;
  bool in_parts = false;
  bool unordered = false;  // another order of ready on every rank
  std::size_t steps = 3;
};

/// Calls `f(options, borrowed)` for each stage up to the last one, with and without overlap, for all kinds of buckets,
/// for owned parameters and, where the stage takes those, borrowed ones; at stage 3 for mapped and gathered weights,
/// and below it, with buckets of 4096 bytes, for weights of each rank and shared ones.
template <class F>
void for_each_way(distx::DataParallelOptions options, int last_stage, F&& f,
                  std::initializer_list<std::size_t> buckets = {0, 4096, distx::unlimited}) {
  for (int stage = 0; stage <= last_stage; ++stage)
    for (const bool overlap : {false, true})
      for (const std::size_t bytes : buckets)
        for (const bool borrowed : {false, true}) {
          if (borrowed && stage >= 2) continue;
          for (const bool maps : {true, false}) {
            if (stage < 3 && maps && (borrowed || bytes != 4096)) continue;
            CAPTURE(stage);
            CAPTURE(overlap);
            CAPTURE(bytes);
            CAPTURE(borrowed);
            CAPTURE(maps);
            options.stage = stage;
            options.overlap = overlap;
            options.bucket_bytes = bytes;
            options.map_weights = maps;
            options.share_weights = stage < 3 && maps;
            f(std::as_const(options), borrowed);
          }
        }
}

/// One forward and backward pass of one sample, and `ready` for every parameter.
template <class T, class Parameters>
void pass(T& training, Parameters& parameters, std::size_t sample, bool unordered = false) {
  const std::size_t count = toy::sizes.size();
  float sum = 0;
  for (std::size_t p = 0; p < count; ++p) {
    const auto weights = training.unshard(parameters[p]);
    sum += training.value(parameters[p])[0];
  }
  for (std::size_t k = count; k-- > 0;) {
    const std::size_t p = unordered ? (k + sample) % count : k;
    const auto weights = training.unshard(parameters[p]);
    const auto value = training.value(parameters[p]);
    const auto gradient = training.gradient(parameters[p]);
    for (std::size_t i = 0; i < value.size(); ++i)
      gradient[i] += value[i] - static_cast<float>(toy::target(p, i, sample)) + 0 * sum;
    training.ready(parameters[p]);
  }
}

/// All weights after some steps of AdamW, as this rank sees them.
template <class C>
std::vector<float> train(C& comm, const Way& way) {
  auto parameters = owned();
  toy::Model model;
  auto refs = model.parameters();
  const distx::AdamW optimizer{.weight_decay = 0.125};
  Training training(comm, way.borrowed ? distx::ParameterList<>(refs) : distx::ParameterList<>(parameters), optimizer,
                    way.options);
  for (std::size_t step = 0; step < way.steps; ++step) {
    const std::size_t sample = 10 * step + static_cast<std::size_t>(comm.rank());
    if (way.borrowed)
      pass(training, refs, sample, way.unordered);
    else
      pass(training, parameters, sample, way.unordered);
    if (way.in_parts) {
      training.reduce_gradients();
      training.update_weights({.learning_rate = 0.01});
      training.gather_weights();
    } else {
      training.step({.learning_rate = 0.01});
    }
  }
  if (way.borrowed) return model.weights();
  std::vector<float> all;
  for (const auto& parameter : parameters) {
    const auto weights = training.unshard(parameter);
    all.insert(all.end(), training.value(parameter).begin(), training.value(parameter).end());
  }
  return all;
}

}  // namespace stages
