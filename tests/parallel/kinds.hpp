// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <distx/optim/lamb.hpp>
#include <distx/optim/mixed.hpp>
#include <distx/optim/muon.hpp>

#include "optim/update_parameter.hpp"
#include "stages.hpp"

// A model of matrices and vectors, trained with optimizers of every kind by one text.
namespace kinds {

using Mixture = distx::Mixed<distx::Muon, distx::AdamW>;
using Floats = std::vector<float>;

struct Shape {
  const char* name;
  std::size_t rows, columns;  // no rows: a vector
};
inline constexpr Shape shapes[] = {{"embedding", 0, 1300}, {"a.weight", 24, 10},   {"a.bias", 0, 24},
                                   {"b.weight", 7, 33},    {"b.bias", 0, 7},       {"c.weight", 20, 900},
                                   {"c.scale", 0, 1},      {"head.weight", 33, 17}};

inline std::size_t elements(const Shape& shape) { return std::max<std::size_t>(1, shape.rows) * shape.columns; }

/// The options of a parameter: vectors decay less and move faster.
inline distx::ParameterOptions options_of(const Shape& shape) {
  if (shape.rows > 0) return {.rows = shape.rows};
  return {.group = {.learning_rate_scale = 1.5}};
}

struct Way {
  distx::DataParallelOptions options{};
  bool borrowed = false;
  bool matrices_only = false;
  bool by_hand = false;  ///< whole parameters are updated, one by one, with what `reduce_gradients` gives: at stage 0
};

/// One update of a whole parameter, regardless of the optimizer's kind.
template <class Optimizer>
void update_whole(const Optimizer& optimizer, const distx::Step& step, const Shape& shape,
                  const distx::Fragment<distx::Host>& fragment, std::vector<Floats>& states) {
  std::array<distx::Span<float>, Optimizer::states> spans;
  for (std::size_t s = 0; s < spans.size(); ++s) {
    states[s].resize(fragment.weight.size());
    spans[s] = states[s];
  }
  const auto weight = fragment.weights<float>();
  const auto gradient = fragment.gradients<float>();
  const distx::MatrixShape matrix{shape.rows, shape.columns};
  const auto if_matrix = shape.rows > 0 ? std::optional(matrix) : std::nullopt;
  if constexpr (distx::MatrixOptimizer<Optimizer>)
    reference::update_parameter(optimizer, step, matrix, weight, gradient, spans);
  else if constexpr (distx::NormOptimizer<Optimizer>)
    reference::update_parameter(optimizer, step, weight, gradient, spans);
  else if constexpr (distx::ElementwiseOptimizer<Optimizer>)
    reference::update_parameter(optimizer, step, weight, gradient, spans);
  else
    reference::update_parameter(optimizer, step, if_matrix, weight, gradient, spans);
}

/// Every rank's weights after three steps, and the bytes that it holds.
struct Trained {
  Floats weights;
  distx::observe::MemoryLedger memory;
};

/// Where the options allow it, in the second step one parameter has a gradient on rank 0 alone, another on no rank.
inline bool has_gradient(const Way& way, std::size_t parameter, std::uint64_t step, int rank) {
  return !way.options.allow_unused || step != 2 || (parameter != 3 && (parameter != 2 || rank == 0));
}

template <class Training = stages::Training, class T = float, class C, class Optimizer>
Trained train(C& comm, const Optimizer& optimizer, const Way& way) {
  // With Reproducible, a virtual rank has the samples that a rank has without it.
  const auto micro_batches = Training::virtual_ranks > 0
                                 ? static_cast<std::size_t>(Training::virtual_ranks / comm.size())
                             : Training::accumulates ? std::size_t{2}
                                                     : std::size_t{1};
  std::vector<Shape> model;
  for (const auto& shape : shapes)
    if (shape.rows > 0 || !way.matrices_only) model.push_back(shape);
  std::vector<distx::Parameter<T>> parameters;
  std::vector<std::vector<T>> arrays(2 * model.size());
  std::vector<distx::ParameterRef<T>> refs;
  for (std::size_t p = 0; p < model.size(); ++p) {
    const auto initialize = [p](distx::Span<T> values) {
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<T>(static_cast<float>(toy::first_weight(p, i)));
    };
    const auto options = options_of(model[p]);
    parameters.emplace_back(model[p].name, elements(model[p]), initialize, options);
    for (const std::size_t k : {2 * p, 2 * p + 1}) arrays[k].resize(elements(model[p]));
    initialize(arrays[2 * p]);
    refs.push_back(distx::ref(model[p].name, arrays[2 * p], arrays[2 * p + 1], options));
  }
  Training training(comm, way.borrowed ? distx::ParameterList<>(refs) : distx::ParameterList<>(parameters), optimizer,
                    way.options);
  const auto pass = [&](auto& list, std::uint64_t step, std::size_t micro_batch) {
    for (std::size_t p = list.size(); p-- > 0;) {
      const auto weights = training.unshard(list[p]);
      const std::size_t rank = static_cast<std::size_t>(comm.rank());
      const std::size_t leaf = rank * micro_batches + micro_batch;
      if (!has_gradient(way, p, step, static_cast<int>(Training::virtual_ranks > 0 ? leaf : rank))) continue;
      const auto value = training.value(list[p]);
      const auto gradient = training.gradient(list[p]);
      const std::size_t sample = 10 * step + (Training::virtual_ranks > 0 ? leaf : rank + 100 * micro_batch);
      for (std::size_t i = 0; i < value.size(); ++i)
        gradient[i] = static_cast<T>(static_cast<float>(gradient[i]) + static_cast<float>(value[i]) -
                                     static_cast<float>(toy::target(p, i, sample)));
      training.ready(list[p]);
    }
  };
  std::vector<std::vector<Floats>> states(model.size(), std::vector<Floats>(2));
  std::vector<std::uint64_t> updates(model.size());
  for (std::uint64_t step = 1; step <= 3; ++step) {
    for (std::size_t k = 0; k < micro_batches; ++k) {
      if constexpr (Training::accumulates)
        static_cast<void>(training.micro_batch({.index = k, .count = micro_batches}));
      if (way.borrowed)
        pass(refs, step, k);
      else
        pass(parameters, step, k);
    }
    if (!way.by_hand) {
      training.step({.learning_rate = 0.01});
      continue;
    }
    training.reduce_gradients();
    if constexpr (std::same_as<T, float>)
      for (const auto& fragment : training.owned()) {
        const std::size_t p = fragment.parameter;
        const auto& group = options_of(model[p]).group;
        update_whole(optimizer, {0.01 * group.learning_rate_scale, ++updates[p], group.weight_decay}, model[p],
                     fragment, states[p]);
      }
    training.gather_weights();
  }
  Trained trained{{}, training.memory()};
  training.for_each_full_weight([&](const std::string&, distx::Span<const distx::AnyElement> values) {
    for (std::size_t i = 0; i < values.size(); ++i)
      trained.weights.push_back(static_cast<float>(static_cast<const T*>(values.data())[i]));
  });
  return trained;
}

}  // namespace kinds
