// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <distx/memory/buffer.hpp>
#include <distx/memory/local_matmul.hpp>
#include <distx/training.hpp>

#include "../common/portable_random.hpp"
#include "mlp_operations.hpp"

namespace examples {

/// A perceptron of dense layers with ReLU between them, in the memory of one space: rows are samples.
///
/// What is not a product of matrices are the functions of mlp_operations.hpp. All work is enqueued on the stream given.
template <distx::MemorySpace Space>
class Mlp {
 public:
  using stream = typename Space::stream;
  template <class T>
  using Span = distx::Span<T, Space>;

  struct Layer {
    distx::Parameter<float, Space> weight;  ///< inputs x outputs
    distx::Parameter<float, Space> bias;
    std::size_t inputs, outputs;
    distx::Buffer<float, Space> output;    ///< of a batch
    distx::Buffer<float, Space> gradient;  ///< of that
  };

  /// @param sizes of the input, of what is hidden, of the output
  Mlp(const std::vector<std::size_t>& sizes, std::size_t batch, std::uint64_t seed) {
    for (std::size_t l = 0; l + 1 < sizes.size(); ++l) {
      const std::size_t inputs = sizes[l], outputs = sizes[l + 1];
      const auto initialize = [=](Span<float> values) {  // He et al., arXiv 1502.01852, uniform
        Generator generator(seed + l);
        const double bound = std::sqrt(6.0 / static_cast<double>(inputs));
        std::vector<float> drawn(values.size());
        for (float& value : drawn) value = static_cast<float>(uniform(generator, -bound, bound));
        const stream first{};
        copy(first, values, distx::Span<const float>(drawn));
        first.synchronize();
      };
      const std::string name = "dense" + std::to_string(l);
      layers_.push_back({{name + ".weight", inputs * outputs, initialize},
                         {name + ".bias", outputs},
                         inputs,
                         outputs,
                         distx::Buffer<float, Space>(batch * outputs),
                         distx::Buffer<float, Space>(batch * outputs)});
    }
  }

  [[nodiscard]] std::vector<const distx::Parameter<float, Space>*> parameters() const {
    std::vector<const distx::Parameter<float, Space>*> all;
    for (const auto& layer : layers_) all.insert(all.end(), {&layer.weight, &layer.bias});
    return all;
  }

  /// Returns the scores of `count` samples, at most one batch: one row per sample. They are valid until the next call.
  template <class Training>
  Span<float> forward(Training& training, Span<const float> samples, std::size_t count, stream on) {
    Span<const float> input = samples;
    for (auto& layer : layers_) {
      const auto weights = training.unshard_after(on, layer.weight, layer.bias);
      const auto output = layer.output.span().first(count * layer.outputs);
      local_matmul(on, distx::MatrixRef<float, Space>{output, count, layer.outputs},
                   distx::MatrixRef<const float, Space>{input, count, layer.inputs},
                   distx::MatrixRef<const float, Space>{layer.weight.value(), layer.inputs, layer.outputs});
      add_bias(on, output, Span<const float>(layer.bias.value()), &layer != &layers_.back());
      input = output;
    }
    return layers_.back().output.span().first(count * layers_.back().outputs);
  }

  /// Forward and backward on a batch of `labels.size()` samples; `losses` becomes the loss of each.
  template <class Training>
  void pass(Training& training, Span<const float> samples, Span<const std::uint8_t> labels, Span<float> losses,
            stream on) {
    const std::size_t count = labels.size();
    const auto scores = forward(training, samples, count, on);
    auto& last = layers_.back();
    softmax_cross_entropy(on, scores, labels, losses, last.gradient.span().first(scores.size()));
    for (std::size_t l = layers_.size(); l-- > 0;) {
      auto& layer = layers_[l];
      const auto weights = training.unshard_after(on, layer.weight, layer.bias);
      const auto gradient = layer.gradient.span().first(count * layer.outputs);
      if (l + 1 < layers_.size())
        relu_backward(on, gradient, Span<const float>(layer.output.span().first(gradient.size())));
      const Span<const float> input = l == 0 ? samples : layers_[l - 1].output.span().first(count * layer.inputs);
      const distx::MatrixRef<const float, Space> of_output{gradient, count, layer.outputs};
      const distx::MatrixRef<const float, Space> inputs{input, count, layer.inputs};
      const distx::MatrixRef<const float, Space> weight{layer.weight.value(), layer.inputs, layer.outputs};
      local_matmul(on, distx::MatrixRef<float, Space>{training.gradient(layer.weight, on), layer.inputs, layer.outputs},
                   inputs.transpose(), of_output, 1, 1);
      add_column_sums(on, training.gradient(layer.bias, on), Span<const float>(gradient));
      training.ready_after(on, layer.weight, layer.bias);
      if (l > 0)
        local_matmul(
            on, distx::MatrixRef<float, Space>{layers_[l - 1].gradient.span().first(input.size()), count, layer.inputs},
            of_output, weight.transpose());
    }
  }

 private:
  std::vector<Layer> layers_;
};

}  // namespace examples
