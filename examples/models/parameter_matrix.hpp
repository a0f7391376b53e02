// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <distx/training.hpp>

#include "../common/portable_random.hpp"
#include "layer.hpp"

namespace examples {

/// A row-major matrix, the memory layout of weights.
template <class Scalar>
using RowMatrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Makes the parameters of a model, with initial values that do not depend on the order of the calls.
class InitialWeights {
 public:
  explicit InitialWeights(std::uint64_t seed) : seed_(seed) {}

  /// The parameters from here on are unsharded together, apart from those before.
  InitialWeights& next_unit() {
    ++unit_;
    return *this;
  }

  /// Numbers drawn evenly from ±sqrt(3) · deviation, row by row.
  template <class Weight>
  distx::Parameter<Weight> uniform(const std::string& name, Eigen::Index size, double deviation,
                                   const distx::ParameterOptions& options = {}) {
    return distx::Parameter<Weight>(name, static_cast<std::size_t>(size), next_draw<Weight>(deviation),
                                    in_unit(options));
  }
  /// The same numbers alone.
  template <class Weight>
  std::vector<Weight> numbers(std::size_t size, double deviation) {
    std::vector<Weight> values(size);
    next_draw<Weight>(deviation)(std::span(values));
    return values;
  }

  /// The same number everywhere; not decayed, as is usual for biases and the parameters of norms.
  template <class Weight>
  distx::Parameter<Weight> constant(const std::string& name, Eigen::Index size, float value) {
    const auto fill = [value](auto values) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<Weight>(value);
    };
    return distx::Parameter<Weight>(name, static_cast<std::size_t>(size), fill,
                                    in_unit<distx::ParameterOptions>({.group = {.weight_decay = 0.0}}));
  }

 private:
  /// What writes the next parameter's numbers.
  template <class Weight>
  auto next_draw(double deviation) {
    return [seed = seed_, number = ++parameters_, bound = std::sqrt(3.0) * deviation](auto values) {
      std::seed_seq both{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32), number};
      Generator generator(both);
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] =
            static_cast<Weight>(static_cast<distx::accumulator_t<Weight>>(examples::uniform(generator, -bound, bound)));
      }
    };
  }
  template <class Options>
  [[nodiscard]] Options in_unit(Options options) const {
    if constexpr (requires { options.unit = {}; }) options.unit = "unit " + std::to_string(unit_);
    return options;
  }

  std::uint64_t seed_;
  std::uint32_t parameters_ = 0;
  int unit_ = 0;
};

/// Returns the options that mark a row-major matrix for matrix optimizers.
template <class Options = distx::ParameterOptions>
[[nodiscard]] Options matrix_of_rows(Eigen::Index rows) {
  Options options;
  if constexpr (requires { options.rows = std::size_t{}; })
    options.rows = static_cast<std::size_t>(rows);
  else
    static_cast<void>(rows);
  return options;
}

/// A parameter's values as a matrix to compute with: its own memory, or a copy where it is stored in fewer bits.
/// @pre the values may be read now: at stage 3 of ZeRO, within the scope of `unshard`
template <class Weight>
[[nodiscard]] auto matrix_of(const distx::Parameter<Weight>& parameter, Eigen::Index rows, Eigen::Index columns) {
  using Scalar = distx::accumulator_t<Weight>;
  const auto values = parameter.value();
  if constexpr (std::is_same_v<Weight, Scalar>) {
    return Eigen::Map<const RowMatrix<Scalar>>(values.data(), rows, columns);
  } else {
    RowMatrix<Scalar> copy(rows, columns);
    for (std::size_t i = 0; i < values.size(); ++i) copy.data()[i] = static_cast<Scalar>(values[i]);
    return copy;
  }
}

/// The same of a parameter that is a vector.
template <class Weight>
[[nodiscard]] auto vector_of(const distx::Parameter<Weight>& parameter) {
  using Scalar = distx::accumulator_t<Weight>;
  const auto values = parameter.value();
  if constexpr (std::is_same_v<Weight, Scalar>) {
    return Eigen::Map<const Vector<Scalar>>(values.data(), static_cast<Eigen::Index>(values.size()));
  } else {
    Vector<Scalar> copy(static_cast<Eigen::Index>(values.size()));
    for (std::size_t i = 0; i < values.size(); ++i) copy.data()[i] = static_cast<Scalar>(values[i]);
    return copy;
  }
}

/// Adds to a parameter's gradient; a matrix is laid out row by row, as its values are.
template <class Weight, class Expression>
void add_to_gradient(const distx::Parameter<Weight>& parameter, const Eigen::MatrixBase<Expression>& sum) {
  using Scalar = distx::accumulator_t<Weight>;
  const auto gradient = parameter.gradient();
  if constexpr (std::is_same_v<Weight, Scalar>) {
    Eigen::Map<RowMatrix<Scalar>>(gradient.data(), sum.rows(), sum.cols()).noalias() += sum.derived();
  } else {
    const RowMatrix<Scalar> all = sum.derived();
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = static_cast<Weight>(static_cast<Scalar>(gradient[i]) + all.data()[i]);
    }
  }
}

}  // namespace examples
