// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <distx/optim/lamb.hpp>
#include <distx/optim/mixed.hpp>
#include <distx/optim/muon.hpp>
#include <distx/optim/update_parameter.hpp>
#include <doctest/doctest.h>

#include "stages.hpp"

using namespace distx::literals;

namespace {

using stages::Training;
using Floats = std::vector<float>;

/// A user's own: the fraction that each step is of the parameter is the learning rate (LARS without momentum).
struct Proportional {
  static constexpr std::size_t states = 0;
  template <class T>
  T coefficients(const distx::Step& step) const {
    return static_cast<T>(step.learning_rate);
  }
  template <class T, class V>
  static constexpr V direction(const T&, V, V gradient) {
    return gradient;
  }
  static double trust(double weight_norm, double direction_norm) {
    return direction_norm > 0 ? weight_norm / direction_norm : 0;
  }
  template <class T, class V>
  static constexpr void apply(const T& rate, V& weight, V direction, V factor) {
    weight -= rate * factor * direction;
  }
};

/// A user's own: each row of a matrix takes a step of the same length.
struct RowByRow {
  static constexpr std::size_t states = 1;
  template <class T>
  T coefficients(const distx::Step& step) const {
    return static_cast<T>(step.learning_rate);
  }
  template <class T, class V>
  static constexpr V direction(const T&, V, V gradient, V& sum) {
    return sum += gradient;
  }
  static std::size_t scratch(distx::MatrixShape shape) { return shape.rows; }
  template <class T>
  double transform(distx::HostStream stream, distx::MatrixShape shape, distx::Span<T> direction,
                   distx::Span<T> norms) const {
    for (std::size_t r = 0; r < shape.rows; ++r) {
      const auto row = direction.subspan(r * shape.columns, shape.columns);
      norms[r] = static_cast<T>(distx::fixed_point_norm(stream, row));
      for (T& x : row) x /= norms[r] + 1;
    }
    return 0.5;
  }
  template <class T, class V>
  static constexpr void apply(const T& rate, V& weight, V direction, V factor) {
    weight -= rate * factor * direction;
  }
};

using Mixture = distx::Mixed<distx::Muon, distx::AdamW>;

struct Shape {
  const char* name;
  std::size_t rows, columns;  // no rows: a vector
};
constexpr Shape shapes[] = {{"embedding", 0, 1300}, {"a.weight", 24, 10}, {"a.bias", 0, 24}, {"b.weight", 7, 33},
                            {"b.bias", 0, 7},       {"c.weight", 20, 900}, {"c.scale", 0, 1}, {"head", 33, 17}};

std::size_t size_of_shape(const Shape& shape) { return std::max<std::size_t>(1, shape.rows) * shape.columns; }

/// What some of the model is told: vectors decay less and move faster.
distx::ParameterOptions options_of(const Shape& shape) {
  if (shape.rows > 0) return {.rows = shape.rows};
  return {.group = {.learning_rate_scale = 1.5}};
}

struct Way {
  distx::DataParallelOptions options{};
  bool borrowed = false;
  bool matrices_only = false;
  bool by_hand = false;  ///< whole parameters are updated, one by one, with what `reduce` gives: at stage 0
};

/// One update of a whole parameter, whatever the optimizer's kind.
template <class Optimizer>
void update_whole(const Optimizer& optimizer, const distx::Step& step, const Shape& shape,
                  const distx::Segment<distx::Host>& segment, std::vector<Floats>& states) {
  std::array<distx::Span<float>, Optimizer::states> spans;
  for (std::size_t s = 0; s < spans.size(); ++s) {
    states[s].resize(segment.weight.size());
    spans[s] = states[s];
  }
  const auto weight = segment.weights<float>();
  const auto gradient = segment.gradients<float>();
  const distx::MatrixShape matrix{shape.rows, shape.columns};
  const auto if_matrix = shape.rows > 0 ? std::optional(matrix) : std::nullopt;
  if constexpr (distx::MatrixOptimizer<Optimizer>) update_parameter(optimizer, step, matrix, weight, gradient, spans);
  else if constexpr (distx::NormOptimizer<Optimizer>) update_parameter(optimizer, step, weight, gradient, spans);
  else update_parameter(optimizer, step, if_matrix, weight, gradient, spans);
}

/// Every rank's weights after three steps, and the bytes that it holds.
struct Trained {
  Floats weights;
  distx::MemoryLedger memory;
};

template <class Optimizer>
Trained train_on(distx::ThreadCommunicator& comm, const Optimizer& optimizer, const Way& way) {
  std::vector<Shape> model;
  for (const auto& shape : shapes)
    if (shape.rows > 0 || !way.matrices_only) model.push_back(shape);
  std::vector<distx::Parameter<float>> parameters;
  std::vector<Floats> arrays(2 * model.size());
  std::vector<distx::ParameterRef<float>> refs;
  for (std::size_t p = 0; p < model.size(); ++p) {
    const auto initialize = [p](distx::Span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(toy::first_weight(p, i));
    };
    const auto options = options_of(model[p]);
    parameters.emplace_back(model[p].name, size_of_shape(model[p]), initialize, options);
    for (const std::size_t k : {2 * p, 2 * p + 1}) arrays[k].resize(size_of_shape(model[p]));
    initialize(arrays[2 * p]);
    refs.push_back(distx::ref(model[p].name, arrays[2 * p], arrays[2 * p + 1], options));
  }
  Training training(comm, way.borrowed ? distx::ParameterList<>(refs) : distx::ParameterList<>(parameters), optimizer,
                    way.options);
  std::vector<std::vector<Floats>> states(model.size(), std::vector<Floats>(2));
  const auto pass = [&](auto& list, std::size_t sample) {
    for (std::size_t p = list.size(); p-- > 0;) {
      const auto weights = training.unshard(list[p]);
      const auto value = training.value(list[p]);
      const auto gradient = training.gradient(list[p]);
      for (std::size_t i = 0; i < value.size(); ++i)
        gradient[i] += value[i] - static_cast<float>(toy::target(p, i, sample));
      training.ready(list[p]);
    }
  };
  for (std::uint64_t step = 1; step <= 3; ++step) {
    const std::size_t sample = 10 * step + static_cast<std::size_t>(comm.rank());
    if (way.borrowed) pass(refs, sample);
    else pass(parameters, sample);
    if (!way.by_hand) {
      training.step({.learning_rate = 0.01});
      continue;
    }
    training.reduce();
    for (const auto& segment : training.owned()) {
      const auto& group = options_of(model[segment.parameter]).group;
      update_whole(optimizer, {0.01 * group.learning_rate_scale, step, group.weight_decay}, model[segment.parameter],
                   segment, states[segment.parameter]);
    }
    training.gather();
  }
  Trained trained{{}, training.memory()};
  training.for_each_full_weight([&](const std::string&, distx::Span<const distx::AnyElement> values) {
    const auto* first = static_cast<const float*>(values.data());
    trained.weights.insert(trained.weights.end(), first, first + values.size());
  });
  return trained;
}

template <class Optimizer>
std::vector<Trained> train(int ranks, const Optimizer& optimizer, const Way& way) {
  std::vector<Trained> all(static_cast<std::size_t>(ranks));
  toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    all[static_cast<std::size_t>(comm.rank())] = train_on(comm, optimizer, way);
  });
  return all;
}

/// Whatever the way, the weights are those of whole parameters updated by hand.
template <class Optimizer>
void check_bits(const Optimizer& optimizer, bool matrices_only = false) {
  for (const int ranks : toy::rank_counts)
    for (const double clip : {std::numeric_limits<double>::infinity(), 1.0}) {
      if (clip == 1 && ranks != 3) continue;
      const auto expected = train(ranks, optimizer, {.options = {.overlap = false, .stage = 0, .clip_norm = clip},
                                                     .matrices_only = matrices_only, .by_hand = true}).front().weights;
      for (const int stage : {0, 1, 2, 3})
        for (const bool overlap : {false, true})
          for (const std::size_t bytes : {0_KiB, 4_KiB, distx::unlimited})
            for (const bool borrowed : {false, true}) {
              if (borrowed && stage >= 2) continue;
              CAPTURE(ranks);
              CAPTURE(clip);
              CAPTURE(stage);
              CAPTURE(overlap);
              CAPTURE(bytes);
              CAPTURE(borrowed);
              const distx::DataParallelOptions options{
                  .bucket_bytes = bytes, .overlap = overlap, .stage = stage, .clip_norm = clip};
              for (const auto& rank : train(ranks, optimizer, {options, borrowed, matrices_only}))
                CHECK(toy::same_bits(rank.weights, expected));
            }
    }
}

}  // namespace

TEST_CASE("LAMB's bits are those of whole parameters, wherever they are cut") { check_bits(distx::LAMB{}); }

TEST_CASE("the bits of Muon mixed with AdamW are those of whole parameters, whoever has them") {
  check_bits(Mixture{});
}

TEST_CASE("a user's own optimizers are cut up and dealt out like those of the library") {
  check_bits(Proportional{});
  check_bits(RowByRow{}, true);
  check_bits(distx::Mixed{RowByRow{}, distx::SGD{.momentum = 0.5}});
}
