// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "models/parameter_matrix.hpp"
#include "models/softmax_cross_entropy.hpp"

namespace timing {

/// A perceptron of dense layers with rectifiers between them, for all stages of ZeRO: its training lends it all memory.
class Mlp {
 public:
  using Matrix = examples::Matrix<float>;

  /// @param widths of the input, of every hidden layer, and of the output; the initial weights have the variance
  ///   2 / inputs (He et al., 2015, Delving Deep into Rectifiers)
  explicit Mlp(const std::vector<Eigen::Index>& widths, std::uint64_t seed = 1) {
    examples::InitialWeights initial(seed);
    layers_.reserve(widths.size() - 1);
    for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
      initial.next_unit();
      const std::string name = "dense" + std::to_string(i + 1);
      const double deviation = std::sqrt(2.0 / static_cast<double>(widths[i]));
      layers_.push_back({initial.uniform<float>(name + ".weight", widths[i] * widths[i + 1], deviation),
                         initial.constant<float>(name + ".bias", widths[i + 1], 0),
                         widths[i],
                         widths[i + 1],
                         {}});
    }
  }

  [[nodiscard]] std::vector<const distx::Parameter<float>*> parameters() const {
    std::vector<const distx::Parameter<float>*> all;
    for (const auto& layer : layers_) all.insert(all.end(), {&layer.weight, &layer.bias});
    return all;
  }

  /// The loss of a batch of one sample a column, which is borrowed until `backward`.
  template <class Training>
  float forward(const Matrix& input, std::span<const std::uint8_t> labels, Training& training) {
    input_ = &input;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      Layer& layer = layers_[i];
      [[maybe_unused]] const auto whole = training.unshard(layer.weight, layer.bias);
      layer.output.noalias() = examples::matrix_of(layer.weight, layer.outputs, layer.inputs) * input_of(i);
      layer.output.colwise() += examples::vector_of(layer.bias);
      if (i + 1 < layers_.size()) layer.output = layer.output.cwiseMax(0.0f);
    }
    return examples::softmax_cross_entropy(layers_.back().output, labels, gradient_);
  }

  /// Each layer's parameters are ready before the gradient for the layer below is computed.
  template <class Training>
  void backward(Training& training) {
    for (std::size_t i = layers_.size(); i-- > 0;) {
      const Layer& layer = layers_[i];
      examples::add_to_gradient(layer.weight, gradient_ * input_of(i).transpose());
      examples::add_to_gradient(layer.bias, gradient_.rowwise().sum());
      training.ready(layer.weight, layer.bias);
      if (i == 0) break;
      [[maybe_unused]] const auto whole = training.unshard(layer.weight);
      below_.noalias() = examples::matrix_of(layer.weight, layer.outputs, layer.inputs).transpose() * gradient_;
      gradient_ = (input_of(i).array() > 0).select(below_, 0.0f);
    }
  }

 private:
  struct Layer {
    distx::Parameter<float> weight;  // outputs × inputs
    distx::Parameter<float> bias;
    Eigen::Index inputs;
    Eigen::Index outputs;
    Matrix output;
  };

  [[nodiscard]] const Matrix& input_of(std::size_t i) const { return i == 0 ? *input_ : layers_[i - 1].output; }

  std::vector<Layer> layers_;
  const Matrix* input_ = nullptr;
  Matrix gradient_;
  Matrix below_;
};

}  // namespace timing
